"""The broker's name in requests, by which RocketMQ 5's Proxy forwards them (RIP-55).

In the routes of a Proxy every broker has the Proxy's address. Java's clients from 4.9.5 on name the
broker in the requests below, and the Proxy refuses these without a name. Brokers ignore it. See
docs/protocol/rocketmq.md, section 2.17.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from coherer._wire.rocketmq.codes import RequestCode

_SHORT: Final = "n"
_LONG: Final = "bname"

BROKER_NAME_FIELDS: Final[Mapping[int, str]] = {
    RequestCode.SEND_MESSAGE_V2: _SHORT,
    RequestCode.SEND_BATCH_MESSAGE: _SHORT,
    RequestCode.SEND_REPLY_MESSAGE_V2: _SHORT,
    RequestCode.SEND_MESSAGE: _LONG,
    RequestCode.SEND_REPLY_MESSAGE: _LONG,
    RequestCode.PULL_MESSAGE: _LONG,
    RequestCode.QUERY_CONSUMER_OFFSET: _LONG,
    RequestCode.UPDATE_CONSUMER_OFFSET: _LONG,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _LONG,
    RequestCode.GET_MAX_OFFSET: _LONG,
    RequestCode.GET_MIN_OFFSET: _LONG,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _LONG,
    RequestCode.CONSUMER_SEND_MSG_BACK: _LONG,
    RequestCode.END_TRANSACTION: _LONG,
}
"""The field with the broker's name, by request code. Locks (41, 42) name it in their bodies."""


def with_broker(code: int, fields: Mapping[str, str], broker: str) -> Mapping[str, str]:
    """Add the broker's name to the fields of a request, if requests of this code have it.

    Args:
        fields: the custom header.
        broker: the name; empty if it is unknown.

    >>> with_broker(30, {"topic": "orders", "queueId": "3"}, "broker-a")
    {'topic': 'orders', 'queueId': '3', 'bname': 'broker-a'}
    """
    name = BROKER_NAME_FIELDS.get(code) if broker else None
    return fields if name is None else {**fields, name: broker}
