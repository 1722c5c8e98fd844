"""Records of the requests that a node in a test has received, and how they are selected."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Final, Literal

import msgspec

from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.tubemq import methods
from coherer.errors import UsageError

KINDS: Final = {
    "send": (
        "SEND_MESSAGE",
        "SEND_MESSAGE_V2",
        "SEND_BATCH_MESSAGE",
        "SEND_HALF_BATCH",
        "sendMessageP2B",
    ),
    "receive": ("PULL_MESSAGE", "getMessagesC2B"),
    "commit": ("UPDATE_CONSUMER_OFFSET", "consumerCommitC2B"),
    "retry": ("CONSUMER_SEND_MSG_BACK",),
    "end_transaction": ("END_TRANSACTION", "END_HALF_BATCH"),
    "heartbeat": (
        "HEART_BEAT",
        "producerHeartbeatP2M",
        "consumerHeartbeatC2M",
        "consumerHeartbeatC2MV2",
        "consumerHeartbeatC2B",
    ),
    "register": (
        "producerRegisterP2M",
        "consumerRegisterC2M",
        "consumerRegisterC2MV2",
        "consumerRegisterC2B",
    ),
    "route": ("GET_ROUTEINFO_BY_TOPIC",),
}
"""Requests that mean the same in both protocols; others are selected by the protocol's names."""

_KIND_OF: Final = {name: kind for kind, names in KINDS.items() for name in names}
RECORDS_MAX: Final = 100_000

Protocol = Literal["tubemq", "rocketmq"]


class ReceivedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that a node has received.

    Args:
        protocol: `tubemq` or `rocketmq`.
        code: its number in the protocol.
        name: its name in the protocol, such as `PULL_MESSAGE` or `getMessagesC2B`.
        topic: the topic that it names; empty if it names none or several.
        group: the group that it names, or empty.
        peer: the client's address.
    """

    protocol: Protocol
    code: int
    name: str
    topic: str = ""
    group: str = ""
    peer: str = ""

    @property
    def kind(self) -> str:
        """What both protocols call it, such as `send`; empty for other requests."""
        return _KIND_OF.get(self.name, "")


class Requests:
    """The requests that a node has received, the newest 100,000: `node.requests`.

    Records are added by the node's thread, so a test that compares them waits for an answer first.

    >>> requests = Requests()
    >>> requests.add(ReceivedRequest(protocol="rocketmq", code=10, name="SEND_MESSAGE", topic="t"))
    >>> requests.count("send"), requests.count("send", topic="other"), len(requests)
    (1, 0, 1)
    """

    def __init__(self) -> None:
        self._catch_up: Callable[[], object] = lambda: None
        self._all: deque[ReceivedRequest] = deque(maxlen=RECORDS_MAX)
        self._watchers: list[Callable[[ReceivedRequest], object]] = []

    def __len__(self) -> int:
        self._catch_up()
        return len(self._all)

    def __iter__(self) -> Iterator[ReceivedRequest]:
        self._catch_up()
        return iter(tuple(self._all))

    def __repr__(self) -> str:
        counts = Counter(one.name for one in self)
        return f"<Requests {', '.join(f'{name}: {n}' for name, n in counts.most_common())}>"

    def add(self, request: ReceivedRequest) -> None:
        """Add a record."""
        self._all.append(request)
        for arrived in self._watchers:
            arrived(request)

    def watch(self, arrived: Callable[[ReceivedRequest], object]) -> None:
        """Call a function with each request from now on, before it is carried out."""
        self._watchers.append(arrived)

    def clear(self) -> None:
        """Forget all records."""
        self._catch_up()
        self._all.clear()

    def of(
        self,
        request: str | int,
        *,
        topic: str | None = None,
        group: str | None = None,
        protocol: Protocol | None = None,
    ) -> list[ReceivedRequest]:
        """The requests of a kind, selected as by `NodeFaults`."""
        return list(filter(selector(request, topic, group, protocol), self))

    def count(
        self,
        request: str | int,
        *,
        topic: str | None = None,
        group: str | None = None,
        protocol: Protocol | None = None,
    ) -> int:
        """How many requests of a kind there were."""
        return len(self.of(request, topic=topic, group=group, protocol=protocol))


def selector(
    request: str | int, topic: str | None, group: str | None, protocol: Protocol | None
) -> Callable[[ReceivedRequest], bool]:
    """Whether a request is one of a kind, and names this topic and group, if they are not None.

    Raises:
        UsageError: there is no such kind of requests.
    """
    if isinstance(request, str):
        check_name(request)
    names = KINDS.get(request, (request,)) if isinstance(request, str) else ()

    def matches(one: ReceivedRequest) -> bool:
        return (
            (one.name in names or one.code == request)
            and topic in (None, one.topic)
            and group in (None, one.group)
            and protocol in (None, one.protocol)
        )

    return matches


def check_name(request: str) -> None:
    """Check a kind or name of requests.

    Raises:
        UsageError: there is no such request.
    """
    known = {*KINDS, *RequestCode.__members__, *(row.name for row in methods.METHODS.values())}
    if request not in known:
        raise UsageError(
            f"There is no request {request!r}.",
            hint=f"Use one of {', '.join(KINDS)}, or a name of the protocol such as PULL_MESSAGE.",
        )
