"""The texts in which a master tells a broker its settings (2.5.9, 2.5.10).

Both are parts joined by `:` in a fixed order. A topic's text holds a blank where the broker's
default counts.
"""

from __future__ import annotations

from typing import Final, Self

import msgspec

from coherer._wire.tubemq.names import bad

BLANK: Final = " "
"""What TubeMQ writes for a number that has its usual value, and for "no flow control rules"."""


def _write(value: bool | int | str | None) -> str:
    if value is None:
        return BLANK
    return str(value).lower() if isinstance(value, bool) else str(value)


class BrokerDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's default settings for its topics: 12 parts (2.5.9).

    Args:
        partitions: partitions in each store.
        accept_publish: whether producers may be led there.
        accept_subscribe: whether consumers may be led there.
        unflush_threshold: messages after which a file is synced.
        unflush_interval_ms: time after which a file is synced.
        delete_when: not used any more; a blank.
        delete_policy: `delete,168h`: what happens to old segments, and when.
        stores: stores of a topic.
        unflush_data_hold_bytes: bytes after which a file is synced; 0 = not by bytes.
        cache_megabytes: memory for messages, in units of two caches of 512 KiB.
        cache_thousands: messages in memory, in units of two caches of 512.
        cache_flush_interval_ms: time after which memory is written to the file.

    >>> BrokerDefaults.parse("1:true:true:1000:10000: :delete,168h:1:0:3:10:20000").delete_policy
    'delete,168h'
    """

    partitions: int = 1
    accept_publish: bool = True
    accept_subscribe: bool = True
    unflush_threshold: int = 1000
    unflush_interval_ms: int = 10000
    delete_when: str = BLANK
    delete_policy: str = "delete,168h"
    stores: int = 1
    unflush_data_hold_bytes: int = 0
    cache_megabytes: int = 3
    cache_thousands: int = 10
    cache_flush_interval_ms: int = 20000

    def text(self) -> str:
        """Returns the text."""
        return ":".join(_write(value) for value in msgspec.structs.astuple(self))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads the settings.

        Raises:
            ProtocolError: the text is none.
        """
        parts = dict(zip(cls.__struct_fields__, text.split(":"), strict=False))
        if len(parts) != text.count(":") + 1 or len(parts) != len(cls.__struct_fields__):
            raise bad("broker configuration", text)
        try:
            return msgspec.convert(parts, cls, strict=False)
        except msgspec.ValidationError as error:
            raise bad("broker configuration", text) from error


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's settings on a broker: 15 parts (2.5.10). None: the broker's default counts.

    Args:
        topic: its name.
        status: 0 in use, 1 closed, 2 to be removed, 3 removed.
        max_message_bytes: limit for a message; None: the cluster's.
        partitions, …: as in `BrokerDefaults`.

    >>> settings = TopicSettings(topic="demo", partitions=3, stores=2)
    >>> settings.text()
    'demo:3: : : : : : :2:0: : : : : '
    >>> TopicSettings.parse(settings.text()) == settings
    True
    """

    topic: str
    partitions: int | None = None
    accept_publish: bool | None = None
    accept_subscribe: bool | None = None
    unflush_threshold: int | None = None
    unflush_interval_ms: int | None = None
    delete_when: str | None = None
    delete_policy: str | None = None
    stores: int | None = None
    status: int = 0
    unflush_data_hold_bytes: int | None = None
    cache_megabytes: int | None = None
    cache_thousands: int | None = None
    cache_flush_interval_ms: int | None = None
    max_message_bytes: int | None = None

    def text(self) -> str:
        """Returns the text."""
        return ":".join(_write(value) for value in msgspec.structs.astuple(self))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads the settings; old masters leave out the last part.

        Raises:
            ProtocolError: the text is none.
        """
        fields = cls.__struct_fields__
        parts = text.split(":")
        if len(parts) not in (len(fields) - 1, len(fields)):
            raise bad("topic configuration", text)
        named = {name: part.strip() for name, part in zip(fields, parts, strict=False)}
        try:
            return msgspec.convert({k: v for k, v in named.items() if v}, cls, strict=False)
        except msgspec.ValidationError as error:
            raise bad("topic configuration", text) from error
