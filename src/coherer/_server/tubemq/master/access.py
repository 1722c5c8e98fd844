"""Authentication at a master: signatures and tokens (docs/protocol/tubemq.md, section 6).

Java's open-source master has switches for authentication but does not check passwords. Its own
clients fail if the switches are on, because the master never asks for a signature or issues a
token. Coherer's master authenticates clients, Java's included:

* A client that signs with the password of a user gets a token (`authAuthorizedToken`). It sends the
  token instead of a signature. In the second half of the token's lifetime, answers ask for a new
  signature (`requireAuth`).
* Java's consumers do not sign when they register. Their registration is kept, outside of any group,
  until they sign: the answer to the first heartbeat requests it, the second heartbeat carries it.
* Brokers cannot check passwords. They check the visit token, which only authenticated clients
  get. It is a random number, where Java uses the time of its creation. (Java's brokers can also
  ask consumers for a signature, whose content they do not check. Java's consumers do not send one
  when they take partitions, so that option is never switched on.)

A token is bound to the client, the user, the user's password and this run of the master. The answer
to a token of an earlier run is 411, after which clients register again. 415 would mean a wrong
password.

So a client of a changed or removed account is refused at its next heartbeat. Brokers, which do not
know accounts, serve it until its visit token ends (`coherer._server.tubemq.broker.state`).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from typing import Final

import msgspec

from coherer._common import machine
from coherer._common.masking import masked
from coherer._server.options.tubemq import MasterOptions
from coherer._server.tubemq.refusal import Refusal
from coherer._wire.tubemq import credentials
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.codes import ResultCode

_KEY_BYTES: Final = 32


class Identity(msgspec.Struct, frozen=True):
    """An authenticated client.

    Args:
        user: the name of the user; "" if authentication is off.
        token: the token that the client can send next time.
        must_sign: whether to ask the client for a signature next time.
    """

    user: str = ""
    token: str = ""
    must_sign: bool = False

    def __repr__(self) -> str:
        return masked(self, "token")


ANONYMOUS = Identity()
"""Any client of a master without authentication."""


class Authenticator:
    """Checks the signatures and tokens of clients and brokers.

    Args:
        wall_ms: the time of day, which signatures contain. Tokens expire by the monotonic clock.
    """

    def __init__(self, options: MasterOptions, wall_ms: Callable[[], int]) -> None:
        self._options = options
        self._wall_ms = wall_ms
        self._secret = machine.secret.randbytes(32)

    def producer(
        self, client_id: str, certificate: pb.MasterCertificateInfo, now_ms: int
    ) -> Identity:
        """Authenticate a producer.

        Raises:
            Refusal: with 415 if it does not sign correctly and has no valid token.
        """
        if not self._options.authenticate_producers:
            return ANONYMOUS
        identity = self._identity(client_id, certificate, now_ms)
        if identity is None:
            raise _refused("authInfo.userName is Blank")
        return identity

    def consumer(
        self, client_id: str, certificate: pb.MasterCertificateInfo, now_ms: int
    ) -> Identity | None:
        """Authenticate a consumer. Returns None if it still has to sign.

        Raises:
            Refusal: with 415 if its signature is wrong.
        """
        if not self._options.authenticate_consumers:
            return ANONYMOUS
        return self._identity(client_id, certificate, now_ms)

    def broker(self, certificate: pb.MasterCertificateInfo) -> None:
        """Authenticate a broker.

        Raises:
            Refusal: with 415 if its signature is wrong.
        """
        options = self._options
        if options.authenticate_brokers:
            password = options.broker_password if options.broker_user else ""
            name = certificate.authInfo.userName
            own = name == options.broker_user and bool(password)
            self._check_signature(certificate.authInfo, password if own else self._password(name))

    def _identity(
        self, client_id: str, certificate: pb.MasterCertificateInfo, now_ms: int
    ) -> Identity | None:
        if certificate.HasField("authInfo"):
            password = self._password(certificate.authInfo.userName)
            user = self._check_signature(certificate.authInfo, password)
            until_ms = now_ms + self._options.token_life_ms
            token = self._token(client_id, user, password, until_ms)
            return Identity(user, token)
        return self._read_token(client_id, certificate.authorizedToken, now_ms)

    def _password(self, user: str) -> str:
        """The password of a user; "" if the user does not exist."""
        users = self._options.users
        return "" if users is None else users.get(user, "")

    def _check_signature(self, info: pb.AuthenticateInfo, password: str) -> str:
        # An unknown user takes as long as a wrong password, and gets the same answer.
        wrong = credentials.verify(
            info, password, self._wall_ms(), valid_ms=self._options.signature_age_ms
        )
        if wrong is None and not password:
            wrong = "The signature is wrong."
        if wrong is not None:
            raise _refused(wrong)
        return info.userName

    def _token(self, client_id: str, user: str, password: str, until_ms: int) -> str:
        name = base64.urlsafe_b64encode(user.encode()).decode()
        text = f"{until_ms}.{name}"
        return f"{text}.{self._seal(client_id, password, text)}"

    def _read_token(self, client_id: str, token: str, now_ms: int) -> Identity | None:
        text, _, seal = token.rpartition(".")
        until_text, _, name = text.partition(".")
        try:
            user = base64.urlsafe_b64decode(name).decode()
        except ValueError:
            return None
        password = self._password(user)
        expected = self._seal(client_id, password, text)
        if not hmac.compare_digest(seal.encode(), expected.encode()) or not password:
            return None
        left_ms = int(until_text) - now_ms
        if left_ms <= 0:
            return None
        return Identity(user, token, must_sign=left_ms < self._options.token_life_ms // 2)

    def _seal(self, client_id: str, password: str, text: str) -> str:
        key = hmac.digest(self._secret, password.encode(), "sha256")
        return hmac.new(key, f"{client_id}\n{text}".encode(), hashlib.sha256).hexdigest()


class VisitTokens:
    """The tokens that prove to brokers that a client has registered at a master (section 6.3).

    Clients get `valid`. Brokers get both tokens, so that they know each one before any client does.
    Tokens are derived from the key and the period of time. A restarted master with the same key has
    the same tokens, so clients that registered before the restart stay valid.

    Args:
        life_ms: how long a token is valid.
        now_ms: the time, ms since 1970.
        key: the key that tokens are derived from; None for a random one.

    Attributes:
        fresh: the next token for clients.
        key: the key that tokens are derived from.

    >>> first = VisitTokens(300_000, 0)
    >>> again = VisitTokens(300_000, 240_000, first.key)
    >>> again.valid == first.fresh
    True
    """

    valid: int
    fresh: int

    def __init__(self, life_ms: int, now_ms: int, key: bytes | None = None) -> None:
        self.key = key or machine.secret.randbytes(_KEY_BYTES)
        self._period_ms = max(life_ms * 4 // 5, 1)
        self._take(now_ms // self._period_ms)

    def __repr__(self) -> str:
        return f"<VisitTokens of period {self._number}>"

    def rotate(self, now_ms: int) -> None:
        """Switch to the next token when its period begins. Ignores a clock that was set back."""
        number = now_ms // self._period_ms
        if number > self._number:
            self._take(number)

    @property
    def text(self) -> str:
        """Both tokens in the form that brokers receive."""
        return f"{self.valid},{self.fresh}"

    def _take(self, number: int) -> None:
        self._number = number
        self.valid, self.fresh = self._token(number), self._token(number + 1)

    def _token(self, number: int) -> int:
        digest = hmac.digest(self.key, str(number).encode(), "sha256")
        return int.from_bytes(digest[:8], "big") >> 2  # 62 bits: always a positive number


def _refused(text: str) -> Refusal:
    return Refusal(ResultCode.CERTIFICATE_FAILURE, text)
