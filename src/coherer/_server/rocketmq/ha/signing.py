"""How a slave signs its connection to a master with accounts.

See docs/protocol/rocketmq.md, section 6.12.

Java's replication protocol has no accounts. This handshake is added so that Java's programs take no
notice of it:

1. A slave with an account first sends `HELLO`, the offset -1. Java's masters ignore it: they wait
   for an offset that is not -1.
2. A master without accounts, or that trusts the slave's address, answers with an empty piece at
   offset `HELLO`. A master with accounts sends a random number in such a piece.
3. The slave answers the number with `ANSWER`, its account's name, and an HMAC-SHA256 of the number
   that is keyed with the account's secret. The master sends the empty piece if it is right.
4. The slave goes on as Java's: it reports the end of its log. A slave that gets no answer to its
   hello for `ANSWER_MS` does so, too, because the master is Java's; it still signs if it is asked
   later.

Invariant: a master with accounts sends no byte of its log before step 3, except to addresses that
are listed as trusted. Java's slaves cannot sign, so they need such an address.

The number is used once, so a recorded answer is worth nothing. Without TLS the connection can still
be read by others on its way.
"""

from __future__ import annotations

import hmac
import logging
import struct
from collections.abc import Callable
from typing import Final

from coherer._common import machine
from coherer._common.logs import Log
from coherer._net import Connection, Receiver
from coherer._server.rocketmq.ha.frames import ANSWER, HEAD, HELLO, REPORT

_log = Log(logging.getLogger(__name__))

ANSWER_MS: Final = 1_000
"""How long a slave waits for the answer to its hello."""
SILENCE_MS: Final = 20_000
NUMBER_BYTES: Final = 32
_CONTEXT: Final = b"coherer replication "
_NAME: Final = struct.Struct(">H")
_PROOF_BYTES: Final = 32
_NAME_BYTES_MAX: Final = 255
_HEAD_BYTES: Final = REPORT.size + _NAME.size

WELCOME: Final = HEAD.pack(HELLO, 0)
"""Tells a slave that it is served and need not sign (any more)."""


def answer(account: tuple[str, str], number: bytes) -> bytes:
    """The slave's answer to a master's number.

    Args:
        account: name and secret.
    """
    name = account[0].encode()[:_NAME_BYTES_MAX]
    return REPORT.pack(ANSWER) + _NAME.pack(len(name)) + name + _proof(account[1], number)


def _proof(secret: str, number: bytes) -> bytes:
    return hmac.digest(secret.encode(), _CONTEXT + number, "sha256")


class Door:
    """A connection to a master with accounts, until its slave has signed.

    Args:
        secret_of: returns the secret of an account that may copy the log; None for another one.
        admit: makes the receiver that serves a slave.
    """

    def __init__(
        self,
        connection: Connection,
        secret_of: Callable[[str], str | None],
        admit: Callable[[Connection], Receiver],
        now_ms: int,
    ) -> None:
        self.connection = connection
        self._secret_of = secret_of
        self._admit = admit
        self._opened_ms = now_ms
        self._number = b""
        self._data = bytearray()
        self._reported: bytes = b""  # the newest report that came before the answer
        self._slave: Receiver | None = None

    def received(self, data: bytes) -> None:
        """Take a socket read."""
        if self._slave is not None:
            self._slave.received(data)
            return
        self._data += data
        while len(self._data) >= REPORT.size and self._step():
            pass

    def closed(self, error: Exception | None) -> None:
        """The connection has ended."""
        if self._slave is not None:
            self._slave.closed(error)

    def is_waiting(self, now_ms: int) -> bool:
        """Whether the slave may still sign; closes the connection if it takes too long."""
        if self._slave is not None or self.connection.closed:
            return False
        if now_ms - self._opened_ms > SILENCE_MS:
            self._refuse("it has not signed for 20 s")
        return not self.connection.closed

    def _step(self) -> bool:
        """Handle the first frame in memory; returns whether there may be another one."""
        (code,) = REPORT.unpack_from(self._data)
        if code == ANSWER and self._number:
            return self._check()
        if code == HELLO and not self._number:
            self._number = machine.secret.randbytes(NUMBER_BYTES)
            self.connection.write(HEAD.pack(HELLO, len(self._number)) + self._number)
        elif code >= 0 and self._number:
            self._reported = bytes(self._data[: REPORT.size])
        else:
            self._refuse("it does not sign")
            return False
        del self._data[: REPORT.size]
        return True

    def _check(self) -> bool:
        if len(self._data) < _HEAD_BYTES:
            return False
        (size,) = _NAME.unpack_from(self._data, REPORT.size)
        if size > _NAME_BYTES_MAX:
            self._refuse("the name of its account is too long")
            return False
        end = _HEAD_BYTES + size + _PROOF_BYTES
        if len(self._data) < end:
            return False
        name = self._data[_HEAD_BYTES : _HEAD_BYTES + size].decode("utf-8", "replace")
        proof = bytes(self._data[end - _PROOF_BYTES : end])
        secret = self._secret_of(name)
        if not hmac.compare_digest(proof, _proof(secret or "", self._number)) or not secret:
            self._refuse(f"the signature of account {name!r} is wrong, or it lacks permissions")
            return False
        rest = self._reported + bytes(self._data[end:])
        self._data.clear()
        self.connection.write(WELCOME)
        self._slave = self._admit(self.connection)
        if rest:
            self._slave.received(rest)
        return False

    def _refuse(self, reason: str) -> None:
        connection = self.connection
        _log.warning(
            "Replication refused to %s: %s. A slave needs an account with all permissions; a Java "
            "slave, which cannot sign, needs a trusted address (globalWhiteRemoteAddresses in "
            "conf/plain_acl.yml)",
            connection.peer,
            reason,
            about=connection.peer_host,
            peer=connection.peer,
        )
        connection.close()
