"""Masks secrets in `repr`, logs and errors."""

from __future__ import annotations

import re
from typing import Final

import msgspec

MASK: Final = "***"

_USER_INFO: Final = re.compile(r"(?<=//)[^/?#]*@")
_PARAMETER: Final = re.compile(
    r"(?i)((?:password|secret(?:key)?|token|confModAuthToken|authToken)=)[^&#\s]+"
)


def masked(options: msgspec.Struct, *secrets: str) -> str:
    """Return the `repr` of a struct with some fields masked.

    Args:
        secrets: the names of the fields to mask; of mappings only the values are masked.

    >>> class Login(msgspec.Struct):
    ...     user: str
    ...     password: str
    ...     def __repr__(self) -> str:
    ...         return masked(self, "password")
    >>> Login("ann", "secret")
    Login(user='ann', password='***')
    """
    shown: list[str] = []
    for name in options.__struct_fields__:
        value: object = getattr(options, name)
        shown.append(f"{name}={_hidden(value) if name in secrets else repr(value)}")
    return f"{type(options).__name__}({', '.join(shown)})"


def _hidden(value: object) -> str:
    if isinstance(value, dict):
        return repr(dict.fromkeys(map(str, value), MASK))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return repr(MASK) if value else repr(value)


def masked_url(url: str) -> str:
    """Return a URL without user name, password and tokens.

    >>> masked_url("tubemq://ann:secret@10.0.0.1:8715")
    'tubemq://***@10.0.0.1:8715'
    >>> masked_url("http://10.0.0.1:8080/webapi.htm?method=a&confModAuthToken=abc")
    'http://10.0.0.1:8080/webapi.htm?method=a&confModAuthToken=***'
    """
    return _PARAMETER.sub(rf"\1{MASK}", _USER_INFO.sub(f"{MASK}@", url))
