"""Who may come in: signatures, tokens, and the tokens that brokers check (section 6).

Java's open-source master has switches for authentication but checks no password, and its own
clients fail when the switches are on, because it never asks for a signature nor gives a token.
Here it works, with Java's clients too:

* Whoever signs with the password of a user is let in and gets a token (`authAuthorizedToken`); it
  shows the token instead of signing, until the token is half through its life; then the answer
  asks for a signature (`requireAuth`).
* Java's consumers do not sign when they register. They are booked but belong to no group until the
  answer to their first heartbeat has asked for a signature and the second has brought it.
* Brokers cannot check passwords. What they check is the visit token, which only those get who have
  proven themselves; it is a random number here, where Java's is the time of its making. (Java's
  brokers can also ask consumers for a signature, whose content they do not check; its consumers
  send none when they take partitions, so that is never switched on.)

A token is bound to client and user and to this run of the master. A client that shows one of an
earlier run is told to register again (411), not that its password is wrong (415).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Final

import msgspec

from coherer._common.masking import masked
from coherer._server.tubemq.master.options import MasterOptions
from coherer._server.tubemq.refusal import Refusal
from coherer._wire.tubemq import credentials
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.codes import ResultCode

_KEY_BYTES: Final = 32


class Proof(msgspec.Struct, frozen=True):
    """What a client has shown.

    Args:
        user: who it is; "" where nothing was asked for.
        token: what it can show next time.
        require: it should sign next time.
    """

    user: str = ""
    token: str = ""
    require: bool = False

    def __repr__(self) -> str:
        return masked(self, "token")


NOBODY = Proof()
"""What a client shows to a master that asks for nothing."""


class Credentials:
    """Checks what clients and brokers show.

    Args:
        options: users, passwords and periods.
        wall_ms: the time of day, which signatures carry. Tokens end by the clock that is not set.
    """

    def __init__(self, options: MasterOptions, wall_ms: Callable[[], int]) -> None:
        self._options = options
        self._wall_ms = wall_ms
        self._secret = secrets.token_bytes(32)

    def producer(self, client_id: str, shown: pb.MasterCertificateInfo, now_ms: int) -> Proof:
        """What a producer shows.

        Raises:
            Refusal: it is not enough.
        """
        if not self._options.authenticate_producers:
            return NOBODY
        proof = self._proof(client_id, shown, now_ms)
        if proof is None:
            raise _refused("authInfo.userName is Blank")
        return proof

    def consumer(
        self, client_id: str, shown: pb.MasterCertificateInfo, now_ms: int
    ) -> Proof | None:
        """What a consumer shows; None when it shows nothing and should be asked to sign.

        Raises:
            Refusal: it signed, and wrongly.
        """
        if not self._options.authenticate_consumers:
            return NOBODY
        return self._proof(client_id, shown, now_ms)

    def broker(self, shown: pb.MasterCertificateInfo) -> None:
        """What a broker shows.

        Raises:
            Refusal: it is not enough.
        """
        options = self._options
        if options.authenticate_brokers:
            password = options.broker_password if options.broker_user else ""
            name = shown.authInfo.userName
            own = name == options.broker_user and bool(password)
            self._check_signature(shown.authInfo, password if own else self._password(name))

    def _proof(self, client_id: str, shown: pb.MasterCertificateInfo, now_ms: int) -> Proof | None:
        if shown.HasField("authInfo"):
            password = self._password(shown.authInfo.userName)
            user = self._check_signature(shown.authInfo, password)
            return Proof(user, self._token(client_id, user, now_ms + self._options.token_life_ms))
        return self._read_token(client_id, shown.authorizedToken, now_ms)

    def _password(self, user: str) -> str:
        """The password of a user; "" for nobody."""
        users = self._options.users
        return "" if users is None else users.get(user, "")

    def _check_signature(self, info: pb.AuthenticateInfo, password: str) -> str:
        # An unknown user takes as long as a wrong password, and is answered in the same words.
        wrong = credentials.verify(
            info, password, self._wall_ms(), valid_ms=self._options.signature_age_ms
        )
        if wrong is None and not password:
            wrong = "The signature is wrong."
        if wrong is not None:
            raise _refused(wrong)
        return info.userName

    def _token(self, client_id: str, user: str, until_ms: int) -> str:
        name = base64.urlsafe_b64encode(user.encode()).decode()
        text = f"{until_ms}.{name}"
        return f"{text}.{self._seal(client_id, text)}"

    def _read_token(self, client_id: str, token: str, now_ms: int) -> Proof | None:
        text, _, seal = token.rpartition(".")
        if not text or not hmac.compare_digest(seal.encode(), self._seal(client_id, text).encode()):
            return None
        until_text, _, name = text.partition(".")
        user = base64.urlsafe_b64decode(name).decode()
        left_ms = int(until_text) - now_ms
        if left_ms <= 0 or not self._password(user):
            return None
        return Proof(user, token, require=left_ms < self._options.token_life_ms // 2)

    def _seal(self, client_id: str, text: str) -> str:
        return hmac.new(self._secret, f"{client_id}\n{text}".encode(), hashlib.sha256).hexdigest()


class VisitTokens:
    """What shows a broker that a client came through a master (6.3).

    Clients get `valid`. Brokers get both, so that they know a token before any client does. A token
    belongs to a period of time: with the key of the run before, a master that was started anew has
    the same ones, and clients that have registered before go on.

    Args:
        life_ms: how long a token is valid.
        now_ms: when it is, ms since 1970.
        key: what tokens are made with; a random one when None.

    Attributes:
        valid: what clients get.
        fresh: what they will get next.
        key: what they are made with.

    >>> first = VisitTokens(300_000, 0)
    >>> again = VisitTokens(300_000, 240_000, first.key)
    >>> again.valid == first.fresh
    True
    """

    valid: int
    fresh: int

    def __init__(self, life_ms: int, now_ms: int, key: bytes | None = None) -> None:
        self.key = key or secrets.token_bytes(_KEY_BYTES)
        self._period_ms = max(life_ms * 4 // 5, 1)
        self._take(now_ms // self._period_ms)

    def __repr__(self) -> str:
        return f"<VisitTokens of period {self._number}>"

    def rotate(self, now_ms: int) -> None:
        """Take the next token when it is time; a clock that was set back changes nothing."""
        number = now_ms // self._period_ms
        if number > self._number:
            self._take(number)

    @property
    def text(self) -> str:
        """As brokers get them."""
        return f"{self.valid},{self.fresh}"

    def _take(self, number: int) -> None:
        self._number = number
        self.valid, self.fresh = self._token(number), self._token(number + 1)

    def _token(self, number: int) -> int:
        digest = hmac.digest(self.key, str(number).encode(), "sha256")
        return int.from_bytes(digest[:8], "big") >> 2  # 62 bits: a positive number in any case


def _refused(text: str) -> Refusal:
    return Refusal(ResultCode.CERTIFICATE_FAILURE, text)
