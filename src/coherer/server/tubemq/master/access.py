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

import msgspec

from coherer.server.tubemq.master.options import MasterOptions
from coherer.server.tubemq.refusal import Refusal
from coherer.tubemq import credentials
from coherer.tubemq import messages as pb
from coherer.tubemq.codes import ResultCode


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
            users = {options.broker_user: options.broker_password}
            self._check_signature(shown.authInfo, users)

    def _proof(self, client_id: str, shown: pb.MasterCertificateInfo, now_ms: int) -> Proof | None:
        if shown.HasField("authInfo"):
            user = self._check_signature(shown.authInfo, dict(self._options.users))
            return Proof(user, self._token(client_id, user, now_ms + self._options.token_life_ms))
        return self._read_token(client_id, shown.authorizedToken, now_ms)

    def _check_signature(self, info: pb.AuthenticateInfo, users: dict[str, str]) -> str:
        # An unknown user takes as long as a wrong password, and is answered in the same words.
        wrong = credentials.verify(
            info,
            users.get(info.userName, ""),
            self._wall_ms(),
            valid_ms=self._options.signature_age_ms,
        )
        if wrong is None and info.userName not in users:
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
        if left_ms <= 0 or user not in self._options.users:
            return None
        return Proof(user, token, require=left_ms < self._options.token_life_ms // 2)

    def _seal(self, client_id: str, text: str) -> str:
        return hmac.new(self._secret, f"{client_id}\n{text}".encode(), hashlib.sha256).hexdigest()


class VisitTokens:
    """What shows a broker that a client came through a master (6.3).

    Clients get `valid`. Brokers get both, so that they know a token before any client does.

    Attributes:
        valid: what clients get.
        fresh: what they will get next.
    """

    def __init__(self, life_ms: int, now_ms: int) -> None:
        self.valid = self.fresh = secrets.randbits(62)
        self._period_ms = life_ms * 4 // 5
        self._next_ms = now_ms + self._period_ms

    def rotate(self, now_ms: int) -> None:
        """Take the next token when it is time."""
        if now_ms >= self._next_ms:
            self.valid, self.fresh = self.fresh, secrets.randbits(62)
            self._next_ms = now_ms + self._period_ms

    @property
    def text(self) -> str:
        """As brokers get them."""
        return f"{self.valid},{self.fresh}"


def _refused(text: str) -> Refusal:
    return Refusal(ResultCode.CERTIFICATE_FAILURE, text)
