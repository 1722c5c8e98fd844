"""Signatures and their forms in messages (docs/protocol/tubemq.md, sections 6.1, 6.2, 6.4).

>>> sign("admin", "secret", 1700000000000, 12345)
'GzIEn3jIHQZaZeKFky5I832KCzg%3D'
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final
from urllib.parse import quote

from coherer._wire.tubemq import messages as pb

NONCE_LIMIT: Final = 2**31 - 1
"""Nonces are random numbers from 0 to below this."""

VALID_MS: Final = 20_000
"""Default for the largest difference between a signature's time and the server's clock."""


def sign(user: str, password: str, timestamp_ms: int, nonce: int) -> str:
    """Return a user's signature for a time: HMAC-SHA1, base64, percent-encoded.

    SHA-1 is the protocol's choice; as a keyed hash it is not broken.
    """
    text = f"{user}{timestamp_ms}{nonce}".encode()
    digest = hmac.new(password.encode(), text, hashlib.sha1).digest()
    return quote(base64.b64encode(digest).decode("ascii"), safe="")


def authenticate_info(
    user: str, password: str, timestamp_ms: int, nonce: int
) -> pb.AuthenticateInfo:
    """Return the signed message for a master.

    Args:
        user: the user's name.
        password: known to both sides, never sent.
        timestamp_ms: now, ms since 1970.
        nonce: random, from 0 to below `NONCE_LIMIT`.
    """
    return pb.AuthenticateInfo(
        userName=user,
        timestamp=timestamp_ms,
        nonce=nonce,
        othParams="",
        signature=sign(user, password, timestamp_ms, nonce),
    )


def broker_token(user: str, password: str, timestamp_ms: int, nonce: int) -> str:
    """Return the text that a consumer sends to a broker in `authAuthorizedToken`.

    >>> broker_token("admin", "secret", 1700000000000, 12345)
    'admin 1700000000000 12345 GzIEn3jIHQZaZeKFky5I832KCzg%3D'
    """
    return f"{user} {timestamp_ms} {nonce} {sign(user, password, timestamp_ms, nonce)}"


def verify(
    info: pb.AuthenticateInfo, password: str, now_ms: int, *, valid_ms: int = VALID_MS
) -> str | None:
    """Check a signature; return the error, or None if it is valid.

    Args:
        info: the peer's message.
        password: the user's password.
        now_ms: the server's time.
        valid_ms: largest difference between the signature's time and the server's.

    >>> info = authenticate_info("admin", "secret", 1000, 1)
    >>> verify(info, "secret", 1000), verify(info, "other", 1000)
    (None, 'The signature is wrong.')
    """
    if not info.userName.strip() or not info.signature.strip():
        return "User name or signature is blank."
    if abs(now_ms - info.timestamp) > valid_ms:
        return "The signature is too old or too new: are both clocks right?"
    expected = sign(info.userName, password, info.timestamp, info.nonce)
    if not hmac.compare_digest(expected.encode(), info.signature.encode()):
        return "The signature is wrong."
    return None


def parse_broker_token(text: str) -> pb.AuthenticateInfo | None:
    """Parse a broker token; None if it is not valid.

    >>> parse_broker_token("admin 17 5 abc%3D").signature
    'abc%3D'
    >>> parse_broker_token("admin 17 2147483646 abc%3D").nonce
    2147483646
    >>> parse_broker_token("admin 17 2147483648 abc%3D")
    """
    parts = text.split(" ")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() for part in parts[1:3]):
        return None
    user, timestamp, nonce, signature = parts
    if len(timestamp) > 18 or len(nonce) > 10 or int(nonce) > NONCE_LIMIT:
        return None
    return pb.AuthenticateInfo(
        userName=user,
        timestamp=int(timestamp),
        nonce=int(nonce),
        othParams="",
        signature=signature,
    )
