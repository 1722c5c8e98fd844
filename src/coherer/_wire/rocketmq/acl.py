r"""Signatures of requests (docs/protocol/rocketmq.md, sections 10.1 and 10.2).

A signature covers the values of all fields, in the order of their names, and the body.

>>> fields = {"consumerGroup": "GID_demo", "topic": "TopicTest", "queueId": "0"}
>>> signed = signer("accesskey123", "secretkey456")(fields, b"hello")
>>> signed["Signature"]
'Q19VUaLzgH2vvkCGJ2Xjh5We0xM='
>>> verify(signed, b"hello", "secretkey456"), verify(signed, b"hallo", "secretkey456")
(True, False)
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from coherer._wire.rocketmq.fastjson import utf8

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105 - the name of a field
SIGNATURE: Final = "Signature"
_UNSIGNED: Final = frozenset((SIGNATURE, "_UNIQUE_KEY_QUERY"))


Signer: TypeAlias = "Callable[[Mapping[str, str], bytes | memoryview], dict[str, str]]"
"""Takes the fields and the body of a request and returns the fields with the signature."""


def content(fields: Mapping[str, str], body: bytes | memoryview) -> bytes:
    """Return the bytes that a signature covers.

    Names are sorted by their UTF-16 code units, as Java compares strings.
    """
    names = [name for name in fields if name not in _UNSIGNED]
    if all(map(str.isascii, names)):
        names.sort()
    else:
        names.sort(key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    return utf8("".join([fields[name] for name in names])) + body


def sign(data: bytes, secret_key: str) -> str:
    """Return the signature of the bytes that `content` returns."""
    return b64encode(hmac.digest(utf8(secret_key), data, "sha1")).decode()


def signer(access_key: str, secret_key: str, token: str | None = None) -> Signer:
    """Return a function that adds account and signature to the fields of a request.

    Args:
        token: a security token, if the cluster requires one.
    """
    account = {ACCESS_KEY: access_key}
    if token:
        account[SECURITY_TOKEN] = token

    def add(fields: Mapping[str, str], body: bytes | memoryview) -> dict[str, str]:
        signed = {**fields, **account}
        signed[SIGNATURE] = sign(content(signed, body), secret_key)
        return signed

    return add


def verify(fields: Mapping[str, str], body: bytes | memoryview, secret_key: str) -> bool:
    """Return whether a request was signed with the secret, in constant time."""
    expected = sign(content(fields, body), secret_key)
    return hmac.compare_digest(expected.encode(), utf8(fields.get(SIGNATURE, "")))
