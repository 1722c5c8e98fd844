"""Reads plain values of parameters without pydantic.

Typer (from 0.29 on) reads every value with pydantic, also the default of an option that was not
given. To load pydantic takes a third of the time of a short command, 125 ms. But most values are
texts, numbers and paths, for which nothing is to do or a line is enough. All others, and all that
are wrong, are left to typer, so that its errors are the same.

An older version of typer, or a newer one that does it in another way, is left alone.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
NOT_PLAIN: Final = object()
"""Stands for what `plain_value` does not know."""

# Any: typer does not export the classes of its parameters.


def lightened(params: list[Any]) -> list[Any]:
    """Let the parameters of a command read plain values themselves."""
    for param in params:
        if getattr(param, "_runtime_param", NOT_PLAIN) is None:
            param._runtime_param = _PlainFirst()
    return params


class _PlainFirst:
    """Stands for typer's reader of a parameter, which is made when it is needed."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return what the command gets for a value."""
        found = plain_value(value, param)
        if found is not NOT_PLAIN:
            return found
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def plain_value(value: Any, param: Any) -> Any:
    """The value that typer would make of another one.

    Args:
        value: a text of the command line or an environment variable, a default, or None.
        param: typer's parameter.

    Returns:
        The value; `NOT_PLAIN` if typer has to make it, or to refuse it.
    """
    many = param.multiple or param.nargs == -1
    if value is None:
        return () if many else None
    kind, info = param.type_descriptor.annotation, param.type_descriptor.parameter_info
    if value is param.default and type(value) is kind:
        return value
    if many or param.nargs != 1 or info.parser is not None or not isinstance(kind, type):
        return NOT_PLAIN
    if issubclass(kind, Path) and isinstance(value, str):
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
