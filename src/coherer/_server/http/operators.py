"""Accounts for the HTTP administration only: the file `conf/administration.json`.

HTTP transmits the password itself, so the file needs only a hash of it: scrypt with a separate salt
for each account. Accounts of TubeMQ's and RocketMQ's clients cannot be stored that way, because
both protocols sign with the secret, and the node needs it to check the signature. They are in
`conf/plain_acl.yml` (`coherer._server.rocketmq.acl`).

A check with scrypt takes about 50 ms and 16 MiB, on the event loop. So the node remembers passwords
that were correct, as a keyed hash in memory. Guessing from many addresses must not keep the event
loop busy: for half a second after a wrong password from an address that is new to the account, only
remembered passwords are accepted from such addresses. `coherer._common.guesses` decides before this
how often an address may guess.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path
from typing import Final

import msgspec

from coherer._common import machine
from coherer._common.decoding import decoder
from coherer._common.masking import masked
from coherer._common.regular_files import read_regular
from coherer._store.secret_files import changing, check_private, replace_private
from coherer.errors import StoreError, UsageError

FILE: Final = "administration.json"
CHARS_MIN: Final = 7
"""The least length of a password; RocketMQ's accounts have the same minimum."""

RETRY_MS: Final = 500
"""The pause after a wrong password, in which no other one is checked."""

_COST, _BLOCK, _PARALLEL = 14, 8, 1
_BYTES: Final = 32
_MEMORY: Final = 64 << 20
_COST_MAX: Final = 16


def hashed(password: str) -> str:
    """Return the scrypt hash of a password, with its parameters and a new salt.

    >>> matches("secret1", hashed("secret1")), matches("secret2", hashed("secret1"))
    (True, False)
    """
    salt = machine.secret.randbytes(16)
    digest = _scrypt(password, salt, _COST, _BLOCK, _PARALLEL)
    parts = [base64.b64encode(part).decode() for part in (salt, digest)]
    return "$".join(["scrypt", str(_COST), str(_BLOCK), str(_PARALLEL), *parts])


def matches(password: str, stored: str) -> bool:
    """Whether a password belongs to a hash.

    Raises:
        UsageError: `stored` is not a hash of this kind.
    """
    unknown = "A password in the file is not a scrypt hash with known parameters."
    try:
        kind, cost, block, parallel, salt, digest = stored.split("$")
        numbers = int(cost), int(block), int(parallel)
        wanted = base64.b64decode(digest, validate=True)
        grains = base64.b64decode(salt, validate=True)
    except ValueError as error:
        raise UsageError(unknown) from error
    if kind != "scrypt" or not 0 < numbers[0] <= _COST_MAX or numbers[1:] != (_BLOCK, _PARALLEL):
        raise UsageError(unknown)
    return hmac.compare_digest(_scrypt(password, grains, *numbers), wanted)


def _scrypt(password: str, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
    return hashlib.scrypt(
        password.encode(), salt=salt, n=1 << cost, r=block, p=parallel, maxmem=_MEMORY, dklen=_BYTES
    )


class Operator(msgspec.Struct, frozen=True):
    """An account.

    Args:
        password: the hash.
        changes: whether the account may change something; otherwise it may only read.
    """

    password: str
    changes: bool = False

    def __repr__(self) -> str:
        return masked(self, "password")


class _Content(msgspec.Struct):
    accounts: dict[str, Operator] = {}


class Operators:
    """The accounts of the HTTP administration.

    Args:
        home: the directory that contains `conf`.

    Raises:
        UsageError: the file is invalid, or others can read it.
    """

    def __init__(self, home: Path) -> None:
        self._path = home / "conf" / FILE
        self._data = b""
        self._accounts: dict[str, Operator] = {}
        self._key = machine.secret.randbytes(32)
        self._right: dict[str, tuple[str, bytes]] = {}
        self._closed_until_ms = 0
        self.load()

    def __repr__(self) -> str:
        return f"<Operators {', '.join(self._accounts)}>"

    @property
    def accounts(self) -> dict[str, Operator]:
        """The accounts by name."""
        return dict(self._accounts)

    def load(self) -> bool:
        """Read the file if it has changed. Returns whether it has.

        Raises:
            UsageError: it is invalid, or others can read it; the accounts stay as they were.
        """
        try:
            data = read_regular(self._path)
        except FileNotFoundError:
            data = b""
        except OSError as error:
            raise UsageError(f"{self._path} cannot be read: {error}.") from error
        if data == self._data:
            return False
        if data:
            check_private(self._path)
        try:
            found = decoder(_Content).decode(data) if data else _Content()
        except msgspec.DecodeError as error:
            raise UsageError(f"{self._path} is invalid: {error}.") from error
        self._accounts, self._data = found.accounts, data
        self._right.clear()
        return True

    def verifies(self, name: str, password: str, *, is_known: bool, now_ms: int) -> bool:
        """Whether the password of an account is correct.

        Args:
            is_known: whether the address has signed in to the account before.
            now_ms: the time of a monotonic clock.
        """
        account = self._accounts.get(name)
        if account is None or not password:
            return False
        seal = hashlib.blake2b(password.encode(), key=self._key).digest()
        stored, known = self._right.get(name, ("", b""))
        if stored != account.password or not hmac.compare_digest(known, seal):
            if now_ms < self._closed_until_ms and not is_known:
                return False
            if not matches(password, account.password):
                if not is_known:
                    self._closed_until_ms = now_ms + RETRY_MS
                return False
            self._right[name] = account.password, seal
        return True

    def may_change(self, name: str) -> bool:
        """Whether an account may change something."""
        account = self._accounts.get(name)
        return account is not None and account.changes

    def put(
        self, name: str, password: str | None, *, changes: bool | None, is_new: bool = False
    ) -> None:
        """Create an account, or change an existing one.

        Args:
            password: the new password; None to keep it.
            changes: whether it may change something; None to keep this, or False if it is new.
            is_new: fail if the account exists.

        Raises:
            UsageError: the password is too short, a new account has none, or it exists.
            StoreError: the file could not be written.
        """
        if password is not None and len(password) < CHARS_MIN:
            raise UsageError(f"A password must have {CHARS_MIN} characters or more.")
        if not name or ":" in name:
            raise UsageError("A name must not be empty or contain a colon.")
        with changing(self._path.parent):
            self.load()
            before = self._accounts.get(name)
            if is_new and before is not None:
                raise UsageError(f"The account {name!r} exists.")
            if before is None and password is None:
                raise UsageError(f"The account {name!r} does not exist.")
            stored = hashed(password) if password is not None else (before or Operator("")).password
            may = changes if changes is not None else bool(before and before.changes)
            self._save({**self._accounts, name: Operator(stored, may)})

    def delete(self, name: str) -> bool:
        """Delete an account. Returns whether it existed.

        Raises:
            StoreError: the file could not be written.
        """
        with changing(self._path.parent):
            self.load()
            if name not in self._accounts:
                return False
            self._save({key: one for key, one in self._accounts.items() if key != name})
            return True

    def _save(self, accounts: dict[str, Operator]) -> None:
        data = msgspec.json.format(msgspec.json.encode(_Content(accounts)), indent=2)
        try:
            replace_private(self._path, data)
        except OSError as error:
            raise StoreError(f"{self._path} cannot be written: {error}.") from error
        self.load()
