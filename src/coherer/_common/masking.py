"""Secrets do not appear in `repr`, in logs or in errors."""

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
    """The `repr` of a struct in which some fields are not shown.

    Args:
        options: the struct.
        secrets: names of the fields with secrets; of mappings only the keys are shown.

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
    """A URL without the password, token or name of a user that may stand in it.

    >>> masked_url("tubemq://ann:secret@10.0.0.1:8715")
    'tubemq://***@10.0.0.1:8715'
    >>> masked_url("http://10.0.0.1:8080/webapi.htm?method=a&confModAuthToken=abc")
    'http://10.0.0.1:8080/webapi.htm?method=a&confModAuthToken=***'
    """
    return _PARAMETER.sub(rf"\1{MASK}", _USER_INFO.sub(f"{MASK}@", url))
