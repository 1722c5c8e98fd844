"""Accounts of the console, with scrypt hashes of their passwords.

A line of an accounts file is `name:rights:hash`; `rights` is `read` or `change`. Lines that start
with `#` are comments. `coherer console --hash-password` prints a line.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from coherer._common.masking import masked
from coherer._common.regular_files import read_regular
from coherer.errors import UsageError

COST, BLOCK, PARALLEL = 2**14, 8, 1
"""The parameters that OWASP recommends for logins: 16 MiB and about 50 ms."""

SALT_BYTES: Final = 16
MEMORY_BYTES: Final = 64 * 1024 * 1024
_SCHEME: Final = "scrypt"

Rights = Literal["read", "change"]


class Account(msgspec.Struct, frozen=True):
    """An account of the console.

    Args:
        name: its name.
        hash: from `hashed`.
        rights: `read`, or `change` for all rights.
    """

    name: str
    hash: str
    rights: Rights = "change"

    def __repr__(self) -> str:
        return masked(self, "hash")


def hashed(password: str, salt: bytes | None = None) -> str:
    """Return the hash of a password, with its parameters and its salt, a random one if None.

    >>> hashed("secret", b"0123456789abcdef")[:28]
    'scrypt$16384$8$1$MDEyMzQ1Njc'
    """
    salt = salt or secrets.token_bytes(SALT_BYTES)
    key = _key(password, salt, COST, BLOCK, PARALLEL)
    parts = (_SCHEME, COST, BLOCK, PARALLEL, b64encode(salt).decode(), b64encode(key).decode())
    return "$".join(map(str, parts))


def matches(password: str, text: str) -> bool:
    """Whether a password matches a hash.

    >>> matches("secret", hashed("secret")), matches("Secret", hashed("secret"))
    (True, False)
    """
    _, cost, block, parallel, salt, key = text.split("$")
    found = _key(password, b64decode(salt), int(cost), int(block), int(parallel))
    return hmac.compare_digest(found, b64decode(key))


def _key(password: str, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
    return hashlib.scrypt(
        password.encode(), salt=salt, n=cost, r=block, p=parallel, maxmem=MEMORY_BYTES
    )


def line(account: Account) -> str:
    """Format an account as a line of an accounts file."""
    return f"{account.name}:{account.rights}:{account.hash}"


def read(path: Path) -> dict[str, Account]:
    """Read the accounts in a file, by name.

    Raises:
        UsageError: the file cannot be read, or a line is malformed.
    """
    try:
        lines = read_regular(path).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"Cannot read the accounts in {path}: {getattr(error, 'strerror', None) or error}."
        ) from error
    found: dict[str, Account] = {}
    for number, text in enumerate(lines, 1):
        if not text.strip() or text.startswith("#"):
            continue
        name, _, rest = text.strip().partition(":")
        rights, _, key = rest.partition(":")
        if not name or rights not in {"read", "change"} or not _is_hash(key):
            raise UsageError(
                f"{path}, line {number}: this is not an account.",
                hint="`coherer console --hash-password` prints such a line.",
            )
        found[name] = Account(name, key, "change" if rights == "change" else "read")
    if not found:
        raise UsageError(
            f"{path} has no accounts.", hint="`coherer console --hash-password` prints a line."
        )
    return found


def _is_hash(text: str) -> bool:
    try:
        scheme, cost, block, parallel, salt, key = text.split("$")
        sizes = int(cost) * int(block) * int(parallel), len(b64decode(salt)), len(b64decode(key))
    except ValueError:
        return False
    return scheme == _SCHEME and all(sizes) and 128 * int(cost) * int(block) < MEMORY_BYTES


class Passwords:
    """Checks names and passwords."""

    def __init__(self, accounts: Mapping[str, Account]) -> None:
        self._accounts = dict(accounts)
        # Compared for unknown names, so that they take the same time.
        self._nobody = hashed(secrets.token_hex())

    def __bool__(self) -> bool:
        return bool(self._accounts)

    def get(self, name: str) -> Account | None:
        """The account with this name."""
        return self._accounts.get(name)

    def check(self, name: str, password: str) -> Account | None:
        """Return the account with this name and password; unknown names take the same time."""
        account = self._accounts.get(name)
        good = matches(password, self._nobody if account is None else account.hash)
        return account if good else None
