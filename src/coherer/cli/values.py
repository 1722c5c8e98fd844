"""Converts the values of parameters without pydantic where that is easy.

From 0.29 on typer converts every value with pydantic, even the defaults of options that were not
given. Loading pydantic takes 125 ms, a third of the time of a short command. But most values are
texts, integers and paths, which need a line of code at most. Everything else is left to typer, and
so is every wrong value: its errors stay the same.

Versions of typer that work in another way are left alone.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

import typer

_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
NOT_PLAIN: Final = object()
"""What `plain_value` returns for a value that typer has to convert."""

# Any: typer does not export the classes of its parameters.


def lightened(params: list[Any]) -> list[Any]:
    """Let the parameters of a command convert plain values without pydantic."""
    for param in params:
        if getattr(param, "_runtime_param", NOT_PLAIN) is None:
            param._runtime_param = _PlainFirst()
    return params


class _PlainFirst:
    """Takes the place of typer's converter, which is made for the first value that needs it."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Convert a value for the command.

        Raises:
            typer.BadParameter: it is an empty path, which Python takes for the current directory.
        """
        if value == "" and _is_path(param):
            raise typer.BadParameter("The path is empty.", ctx=ctx, param=param)
        found = plain_value(value, param)
        if found is not NOT_PLAIN:
            return found
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _is_path(param: Any) -> bool:
    kind = param.type_descriptor.annotation
    return isinstance(kind, type) and issubclass(kind, Path)


def plain_value(value: Any, param: Any) -> Any:
    """Convert a value as typer would.

    Args:
        value: a text from the command line or an environment variable, a default, or None.
        param: typer's parameter.

    Returns:
        The converted value; `NOT_PLAIN` if typer has to convert or refuse it.
    """
    many = param.multiple or param.nargs == -1
    if value is None:
        return () if many else None
    kind, info = param.type_descriptor.annotation, param.type_descriptor.parameter_info
    if value is param.default and type(value) is kind:
        return value
    if many or param.nargs != 1 or info.parser is not None or not isinstance(kind, type):
        return NOT_PLAIN
    if _is_path(param) and isinstance(value, str):
        is_any = not (info.exists or info.resolve_path or info.writable or info.path_type)
        is_any = is_any and info.file_okay and info.dir_okay
        is_readable = os.access(value, os.R_OK) or not os.path.lexists(value)
        return Path(value) if is_any and is_readable else NOT_PLAIN
    if kind is int and isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    if type(value) is not kind:
        return NOT_PLAIN
    if kind in (int, float):
        low, high = info.min, info.max
        if (low is not None and value < low) or (high is not None and value > high):
            return NOT_PLAIN
    return value
