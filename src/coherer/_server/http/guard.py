"""Who may use an administration: tokens, accounts and signatures, and a limit on guesses.

See docs/protocol/tubemq.md, section 10.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hmac
import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from coherer._common import machine
from coherer._common.guesses import GuessLimit
from coherer._common.logs import Log
from coherer._server.http.operators import Operators
from coherer._wire.tubemq import credentials
from coherer._wire.tubemq import messages as pb

_log = Log(logging.getLogger(__name__))


class Authorization(msgspec.Struct, frozen=True):
    """The `Authorization` header of a request.

    Args:
        authorization: its value: `Basic` with name and password, `TubeMQ` with a signature in the
            protocol's text form (section 6.4), or `Bearer` with the token.
        peer: the address of the client.
    """

    authorization: str = ""
    peer: str = ""

    def __repr__(self) -> str:
        kind = self.authorization.partition(" ")[0]
        return f"Authorization(authorization={kind!r})"  # without the secret


ANONYMOUS: Final = Authorization()


class Decision(enum.Enum):
    """The decision of a guard about a request."""

    ALLOWED = enum.auto()
    REFUSED = enum.auto()
    SLOWED = enum.auto()
    """There were too many wrong ones before; this one was not checked."""


class Guard(msgspec.Struct, frozen=True):
    """Decides who may use an administration.

    Tokens, passwords and signatures are checked only if the address and the account have tries left
    (`coherer._common.guesses`).

    Args:
        token: the `confModAuthToken` for changes; None if no token is accepted.
        accounts: passwords by name; None if the node has no accounts.
        operators: with accounts, those for this administration alone.
        queries: with accounts, whether queries need an account or the token, too.
        now_ms: the clock, ms since 1970, for checking signatures.
        monotonic_s: the clock, in s, for counting tries.

    >>> guard = Guard("secret", {"ann": "pw"})
    >>> basic = Authorization("Basic " + base64.b64encode(b"ann:pw").decode())
    >>> guard.decide(None, basic, changes=True), guard.decide("abc", ANONYMOUS, changes=True)
    (<Decision.ALLOWED: 1>, <Decision.REFUSED: 2>)
    """

    token: str | None = None
    accounts: Mapping[str, str] | None = None
    operators: Operators | None = None
    queries: bool = True
    now_ms: Callable[[], int] = lambda: machine.wall_ns() // 1_000_000
    monotonic_s: Callable[[], float] = lambda: machine.ticks_ns() / 1e9
    _limit: GuessLimit = msgspec.field(default_factory=GuessLimit)

    def __repr__(self) -> str:
        return f"Guard(accounts={self.accounts is not None}, queries={self.queries})"

    def decide(self, token: str | None, authorization: Authorization, *, changes: bool) -> Decision:
        """Whether a request is served."""
        if self.token is None and self.accounts is None:
            return Decision.ALLOWED
        # As in Java's master, a token must be valid even where none is needed.
        if not changes and not token and (self.accounts is None or not self.queries):
            return Decision.ALLOWED
        if not token and not authorization.authorization:
            return Decision.REFUSED
        given = _Given.of(token, authorization)
        now_s = self.monotonic_s()
        if self._limit.begin(given.name, authorization.peer, now_s):
            _log.warning(
                "Too many wrong passwords, signatures or tokens from %s; this one is not checked",
                authorization.peer,
                about=authorization.peer,
                peer=authorization.peer,
            )
            return Decision.SLOWED
        if not self._is_right(given, authorization.peer, now_s):
            return Decision.REFUSED
        self._limit.succeeded(given.name, authorization.peer, now_s)
        if given.kind == "basic" and self.operators is not None and changes:
            is_operator = given.name in self.operators.accounts
            if is_operator and not self.operators.may_change(given.name):
                return Decision.REFUSED
        return Decision.ALLOWED

    def _is_right(self, given: _Given, peer: str, now_s: float) -> bool:
        """Whether the token, the name and password, or the signature is valid."""
        if given.token and self.token is not None and _same(given.token, self.token):
            return True
        if self.accounts is None:
            return False
        password = self.accounts.get(given.name, "")
        if given.kind == "basic":
            if self.operators is not None and given.name in self.operators.accounts:
                is_known = self._limit.knows(given.name, peer)
                return self.operators.verifies(
                    given.name, given.password, is_known=is_known, now_ms=int(now_s * 1000)
                )
            return bool(given.password) and _same(given.password, password)
        if given.signature is None:
            return False
        return not credentials.verify(given.signature, password, self.now_ms()) and bool(password)


def _same(one: str, other: str) -> bool:
    """Compare secrets in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


class _Given(msgspec.Struct, frozen=True):
    """The proof in a request: a token, a name with a password, or a signature with a name."""

    token: str = ""
    kind: str = ""
    name: str = ""
    password: str = ""
    signature: pb.AuthenticateInfo | None = None

    def __repr__(self) -> str:
        return f"_Given(kind={self.kind!r}, name={self.name!r})"  # without the secrets

    @classmethod
    def of(cls, token: str | None, authorization: Authorization) -> _Given:
        kind, _, proof = authorization.authorization.partition(" ")
        kind = kind.lower()
        if kind == "bearer":
            return cls(token or proof, kind)
        if kind == "basic":
            name, password = _basic(proof)
            return cls(token or "", kind, name, password)
        signature = credentials.parse_broker_token(proof) if kind == "tubemq" else None
        name = "" if signature is None else signature.userName
        return cls(token or "", kind, name, signature=signature)


def _basic(proof: str) -> tuple[str, str]:
    try:
        name, _, password = base64.b64decode(proof, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return name, password
