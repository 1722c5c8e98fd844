"""Options that come as keywords."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec

from coherer.errors import UsageError

S = TypeVar("S", bound=msgspec.Struct)


def options_of(kind: type[S], given: Mapping[str, object]) -> S:
    """Options as a struct.

    Args:
        kind: the struct of the options.
        given: some of its fields.

    Raises:
        UsageError: there is no such option, or a value makes no sense.

    >>> class Options(msgspec.Struct):
    ...     start: str = "latest"
    >>> options_of(Options, {"start": "earliest"})
    Options(start='earliest')
    >>> options_of(Options, {"strt": "earliest"})
    Traceback (most recent call last):
    coherer.errors.UsageError: There is no option 'strt'. Did you mean start?
    """
    known = kind.__struct_fields__
    for name in given:
        if name not in known:
            from difflib import get_close_matches

            close = get_close_matches(name, known, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"There are {', '.join(known)}."
            raise UsageError(f"There is no option {name!r}.", hint=hint)
    return kind(**cast("Mapping[str, Any]", given))
