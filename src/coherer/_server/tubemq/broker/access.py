"""What a broker asks of its clients: the visit token and an authorization (6.3, 6.4).

A client gets the visit token from the master; a broker hears the next one before any client does,
and keeps the last six. Who comes without one has not asked the master. The check rests while the
broker itself may have missed tokens: without contact to a master, and for a while after it has
registered. It never rests where the master says that the cluster serves accounts only: the token is
all that shows the broker that a client has one.
"""

from __future__ import annotations

from collections import deque

from coherer._wire.tubemq import messages as pb

_TOKENS_KEPT = 6
GRACE_MS = 120_000
"""How long after its own registration a broker lets unknown tokens pass."""


class Access:
    """The checks that the master has switched on.

    Attributes:
        open: nothing is checked.
        in_contact: the last call to a master succeeded.
        registered_ms: when the broker registered last.
    """

    def __init__(self, grace_ms: int = GRACE_MS) -> None:
        self.in_contact = False
        self.registered_ms = 0
        self._grace_ms = grace_ms
        self._tokens: deque[int] = deque(maxlen=_TOKENS_KEPT)
        self._check_token = False
        self._check_producers = False
        self._check_consumers = False
        self._strict = False

    @property
    def open(self) -> bool:
        """Whether everybody may come in."""
        return not (self._check_token or self._check_producers or self._check_consumers)

    def switch(self, switches: pb.EnableBrokerFunInfo) -> None:
        """Take what the master's registration answer says."""
        self._check_token = switches.enableVisitTokenCheck
        self._check_producers = switches.enableProduceAuthenticate
        self._check_consumers = switches.enableConsumeAuthenticate
        self._strict = switches.accountsRequired

    def settled(self, now_ms: int) -> bool:
        """Whether who may come in now may do so until something is switched or learned."""
        return not self._check_token or not self._trusting(now_ms)

    def learn(self, tokens: str) -> bool:
        """Take the master's tokens, decimal numbers joined by commas; says if one is new."""
        new = False
        for word in tokens.split(","):
            if word.strip().lstrip("-").isdecimal() and int(word) not in self._tokens:
                self._tokens.append(int(word))
                new = True
        return new

    def refusal(self, given: pb.AuthorizedInfo, *, produce: bool, now_ms: int) -> str:
        """Why a request is refused with 415; "" when it is not.

        >>> access = Access()
        >>> access.switch(pb.EnableBrokerFunInfo(enableProduceAuthenticate=True))
        >>> access.refusal(pb.AuthorizedInfo(visitAuthorizedToken=1), produce=True, now_ms=0)
        'authAuthorizedToken is blank; this cluster wants one.'
        """
        token = given.visitAuthorizedToken
        if self._check_token and token not in self._tokens and not self._trusting(now_ms):
            return f"The visit token {token} is not valid."
        checked = self._check_producers if produce else self._check_consumers
        if checked and not given.authAuthorizedToken.strip():
            return "authAuthorizedToken is blank; this cluster wants one."
        return ""

    def _trusting(self, now_ms: int) -> bool:
        if self._strict:
            return False
        return not self.in_contact or now_ms - self.registered_ms < self._grace_ms
