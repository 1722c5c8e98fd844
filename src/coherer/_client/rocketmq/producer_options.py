"""The options of a producer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from enum import Enum
from typing import Final

import msgspec

from coherer import limits
from coherer._client.engine.window import check_window
from coherer._client.rocketmq.faults import FaultRules
from coherer._client.rocketmq.observers import Observer
from coherer._record import compression
from coherer._wire.rocketmq import names
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.messages import StoredMessage
from coherer.errors import UsageError

GROUP_DEFAULT: Final = "coherer"
"""The producer group of those who name none. It matters for transactions and replies only."""

MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""What Java's brokers accept by default, of a message or a batch."""


_LEAST: Final = {"retries": 0, "compress_from_bytes": 0, "max_bytes": 1}
"""The least value of options that are numbers."""

RETRY_CODES: Final = frozenset(
    {
        int(ResponseCode.SYSTEM_ERROR),
        int(ResponseCode.SERVICE_NOT_AVAILABLE),
        int(ResponseCode.NO_PERMISSION),
        int(ResponseCode.TOPIC_NOT_EXIST),
        int(ResponseCode.NO_BUYER_ID),
        int(ResponseCode.NOT_IN_CURRENT_UNIT),
    }
)
"""Refusals that another broker need not share. SYSTEM_BUSY (2) is not among them in Java either:
who sends less is helped sooner than who sends again."""


class Verdict(Enum):
    """What becomes of the message of a transaction; the value is the protocol's number."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


Check = Callable[[StoredMessage], Verdict | Awaitable[Verdict]]
"""Asked by a broker what became of a transaction."""


class ProducerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a producer.

    Args:
        group: the producer group: brokers ask any member of it about open transactions.
        window: how many messages may be under way.
        window_bytes: and how many bytes.
        timeout_ms: how long a message waits for its receipt, with all its tries; the client's
            timeout when None.
        retries: how often a message that is not stored is tried again with another broker: the
            broker refused it, or could not be reached. Nothing is stored twice by these.
        retry_lost: whether that holds, too, for a message whose answer was lost because the
            connection broke, as with Java's producers. Without it (the default) such a message ends
            in DisconnectedError. With it no message is lost while brokers come and go, but it may
            be stored more than once; all copies have the same unique id (`UNIQ_KEY`).
        retry_codes: refusals after which it is tried again; Java's by default. That a broker has
            too much to do (2, SYSTEM_BUSY) is not among them: you get the error and can send less.
            Add it where another broker may have time.
        rules: when slow brokers are avoided; None for never, as Java's producers by default.
        compress_from_bytes: bodies of this length or more are compressed; 0 for none.
        compress_level: how hard, 1 to 9.
        max_bytes: how large a message or a batch may be.
        wait: whether the broker answers only when a message is as safe as it is set to (flushed,
            replicated).
        trace: send a record of each message to the trace topic, or to the topic of this name.
        observers: look on while messages are sent; `coherer._client.engine.telemetry` has one.
        check: asked about transactions whose end a broker has not heard of; without it the producer
            begins none.
    """

    group: str = GROUP_DEFAULT
    window: int = 5_000
    window_bytes: int = limits.WINDOW_BYTES_DEFAULT
    timeout_ms: int | None = None
    retries: int = 2
    retry_lost: bool = False
    retry_codes: Collection[int] = RETRY_CODES
    rules: FaultRules | None = None
    compress_from_bytes: int = compression.THRESHOLD_BYTES
    compress_level: int = compression.LEVEL
    max_bytes: int = MESSAGE_BYTES_MAX
    wait: bool = True
    trace: bool | str = False
    observers: tuple[Observer, ...] | list[Observer] = ()
    check: Check | None = None

    def __post_init__(self) -> None:
        names.check_group(self.group)
        check_window(self.window, self.window_bytes)
        for name, least in _LEAST.items():
            value: int = getattr(self, name)
            if value < least:
                raise UsageError(f"{name} is {least} or more, not {value}.")
        if not 0 <= self.compress_level <= 9:
            raise UsageError(f"{self.compress_level} is no level of compression: 0 to 9 are.")

    def system(self, namespace: str) -> dict[str, str]:
        """Properties that every message gets."""
        found = {} if self.wait else {"WAIT": "false"}
        if namespace:
            found["INSTANCE_ID"] = namespace
        return found
