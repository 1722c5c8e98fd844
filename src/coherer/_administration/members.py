"""Whether the members of a group answer, and whether they agree on topics and filters.

A RocketMQ broker relays a request to each member (307): a member that does not answer within
`ANSWER_S`, while the broker itself does, is silent. The answer has the member's topics. Members of
TubeMQ cannot be asked; a Coherer node lists the silent ones in its status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from coherer._administration.access import Cluster, RocketCluster
from coherer._common.consumer_problems import described, different_topics, silent_consumer
from coherer._common.node_status import NodeStatus, StatusWarning
from coherer._wire.rocketmq.codes import ResponseCode
from coherer.admin import Member
from coherer.errors import CohererError, ProtocolError, RefusedError, RequestTimeoutError

ANSWER_S: Final = 3.0
"""The time in which a member has to answer."""

AT_ONCE: Final = 16
ASKED_MAX: Final = 100
"""The maximum number of members that are asked for one view."""

ASKING_S: Final = 2 * ANSWER_S
"""The time after which no further member is asked. Many silent ones would delay the view."""

LATE_MS: Final = 75_000
"""A RocketMQ member without a heartbeat for longer is silent; clients send one every 30 s."""

_ANSWERING: Final = frozenset({"JAVA", "PYTHON", "GO"})
"""The languages whose clients answer 307."""


class MemberHealth(msgspec.Struct, frozen=True):
    """Whether a member answers.

    Args:
        client: the member.
        answers: None if it is unknown.
        silent_ms: the time since its last sign of life; None if it answers, or if it is unknown.
        topics: RocketMQ: its own topics and filters; None if it is unknown.
        reads: RocketMQ: the keys of the queues that it reads now.
    """

    client: Member
    answers: bool | None
    silent_ms: int | None = None
    topics: str | None = None
    reads: frozenset[str] = frozenset()


async def check(
    cluster: Cluster, members: Sequence[Member], node: NodeStatus | None = None
) -> list[MemberHealth]:
    """Find out which members answer.

    Args:
        cluster: the cluster.
        members: the members of one or several groups; only the first `ASKED_MAX` are asked, and
            only for `ASKING_S`. Whether the others answer is unknown.
        node: TubeMQ: the status of the node, if it is one of Coherer's.
    """
    if not isinstance(cluster, RocketCluster):
        return _seen_by(node, members)
    turns = asyncio.Semaphore(AT_ONCE)
    now_s = asyncio.get_running_loop().time
    end_s = now_s() + ASKING_S

    async def ask(one: Member) -> MemberHealth:
        async with turns:
            return await _asked(cluster, one) if now_s() < end_s else MemberHealth(one, None)

    asked = await asyncio.gather(*map(ask, members[:ASKED_MAX]))
    return [*asked, *(MemberHealth(one, None) for one in members[ASKED_MAX:])]


def _seen_by(node: NodeStatus | None, members: Sequence[Member]) -> list[MemberHealth]:
    if node is None:
        return [MemberHealth(one, None) for one in members]
    silent: Mapping[tuple[str, str], int] = {
        (one.group, one.member): one.silent_ms for one in node.silent
    }
    return [
        MemberHealth(one, (one.group, one.id) not in silent, silent.get((one.group, one.id)))
        for one in members
    ]


async def _asked(cluster: RocketCluster, one: Member) -> MemberHealth:
    silent = MemberHealth(one, answers=False, silent_ms=one.heartbeat_ms)
    if one.heartbeat_ms is not None and one.heartbeat_ms > LATE_MS:
        return silent
    if one.language not in _ANSWERING:
        return MemberHealth(one, None)
    try:
        async with asyncio.timeout(ANSWER_S):
            info = await cluster.admin.groups.running(one.group, one.id)
    except (TimeoutError, RequestTimeoutError):
        return silent
    except RefusedError as error:  # with another code it has left, or its client is too old
        is_silent = error.code == ResponseCode.CONSUME_MSG_TIMEOUT
        return silent if is_silent else MemberHealth(one, None)
    except ProtocolError:  # it cannot say what it does, but is there
        return MemberHealth(one, answers=True)
    except CohererError:
        return MemberHealth(one, None)
    reads = frozenset(queue.key for queue in info.queues)
    topics = described(info.subscriptions)
    return MemberHealth(one, answers=True, topics=topics, reads=reads)


def problems(found: Iterable[MemberHealth]) -> list[StatusWarning]:
    """The problems of these members: silent ones, and groups with different topics."""
    silent: list[StatusWarning] = []
    first: dict[str, MemberHealth] = {}
    divided: dict[str, StatusWarning] = {}
    for one in found:
        client = one.client
        if one.answers is False:
            silent.append(silent_consumer(client.group, client.id, client.address, one.silent_ms))
        if one.topics is None:
            continue
        other = first.setdefault(client.group, one)
        if other.topics != one.topics and client.group not in divided:
            pair = _subscriber(other), _subscriber(one)
            divided[client.group] = different_topics(client.group, *pair)
    return [*silent, *divided.values()]


def _subscriber(one: MemberHealth) -> tuple[str, str | None, str]:
    return one.client.id, one.client.address, one.topics or ""
