"""A consumer's registration with the master: the group, heartbeats, and instructions.

Rules:

* Register once, then send a heartbeat in every interval: the client's or the master's, whichever is
  shorter. The answer may contain an instruction.
* At the start and after each instruction, heartbeats follow each other quickly until the master has
  no more instructions: it can only answer, and a group should not wait 13 s for each step.
* Code 411: the master has forgotten this member; register again, with the assigned partitions.
* A permanent refusal ends the membership; `failure` has the error, which the consumer raises.

The master keeps a copy of every member's partitions. In a rebalance it sends one instruction at a
time in the answer to a heartbeat: give up or take partitions. The member carries it out and
acknowledges it in a later heartbeat, together with the full list of its partitions; then the master
sends the next instruction. An instruction is sent only once, so:

* An acknowledgement is repeated with each heartbeat until one is answered. (Java sends it once; if
  it is lost, the whole group waits for ten rounds of rebalancing.)
* The full list is sent with each acknowledgement, with every `REPORT_EVERY`-th heartbeat, and after
  a change without an instruction, so that a partition that was lost with a broken broker is
  assigned again soon. (Java waits for the sixth heartbeat.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from coherer import limits
from coherer._client.engine.tasks import backoff, cancel
from coherer._client.tubemq.cluster import UNDEFINED, Cluster, checked, client_id, retry
from coherer._client.tubemq.options import Bound
from coherer._common import machine
from coherer._common.logs import Log
from coherer._wire.tubemq import codes, methods
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.flow import FlowRules
from coherer._wire.tubemq.names import (
    Partition,
    SubscribeInfo,
    TopicCondition,
    check_topic,
    is_tubemq_topic,
    required_partitions,
)
from coherer.errors import CohererError, ConnectError, ProtocolError, UsageError

_log = Log(logging.getLogger(__name__))

QUICK_HEARTBEATS: Final = 15
"""The number of quick heartbeats in a row without an instruction: about 9 s."""

REFUSALS_MAX: Final = 5
"""How many heartbeats in a row may be refused for their credentials: a clock may be wrong."""

FINAL_CODES: Final = frozenset(
    {
        ResultCode.BAD_REQUEST,
        ResultCode.CERTIFICATE_FAILURE,
        ResultCode.CLIENT_INCONSISTENT_CONSUMETYPE,
        ResultCode.CLIENT_INCONSISTENT_TOPICSET,
        ResultCode.CLIENT_INCONSISTENT_FILTERSET,
        ResultCode.CLIENT_INCONSISTENT_SESSIONKEY,
        ResultCode.CLIENT_INCONSISTENT_SELECTBIG,
        ResultCode.CLIENT_INCONSISTENT_SOURCECOUNT,
        ResultCode.CLIENT_DUPLICATE_INDEXID,
        ResultCode.CONSUME_GROUP_FORBIDDEN,
        ResultCode.CONSUME_CONTENT_FORBIDDEN,
    }
)
"""Refusals that are permanent."""

REPORT_EVERY: Final = 6
"""The number of heartbeats between full reports without changes."""

CONNECT: Final = 1
DISCONNECT: Final = 2
REPORT: Final = 3
ONLY_CONNECT: Final = 10
ONLY_DISCONNECT: Final = 20

DONE: Final = 2
"""The status of an instruction in its acknowledgement."""

NO_RULES: Final = FlowRules.parse(" ")


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """The group and topics of a consumer.

    Args:
        topics: topic to the accepted tags; no tags for all messages.
        bound: exact start offsets, if any.
    """

    group: str
    topics: Mapping[str, frozenset[str]]
    bound: Bound | None = None

    def __post_init__(self) -> None:
        if not self.group or self.group.isspace() or len(self.group) > limits.GROUP_CHARS_MAX:
            raise UsageError(f"{self.group!r} is not a valid group name.")
        if not 0 < len(self.topics) <= limits.TOPICS_PER_CLIENT_MAX:
            raise UsageError(f"A consumer has 1 to {limits.TOPICS_PER_CLIENT_MAX} topics.")
        for topic, filters in self.topics.items():
            check_topic(topic)
            _check_filters(topic, filters)


def _check_filters(topic: str, filters: Iterable[str]) -> None:
    filters = list(filters)
    if len(filters) > limits.FILTERS_MAX:
        raise UsageError(f"A topic has at most {limits.FILTERS_MAX} filters.", topic=topic)
    for word in filters:
        if not word or word.isspace() or len(word) > limits.FILTER_CHARS_MAX or "," in word:
            raise UsageError(f"{word!r} is not a valid filter.", topic=topic)


class Instruction(msgspec.Struct, frozen=True):
    """An instruction of the master.

    Args:
        id: the number of the rebalance.
        kind: one of the operation codes above; others are only answered.
        partitions: the partitions to take or to give up.
    """

    id: int
    kind: int
    partitions: tuple[Partition, ...] = ()

    @property
    def takes(self) -> bool:
        """Whether partitions are to be taken."""
        return self.kind in {CONNECT, ONLY_CONNECT}

    @property
    def gives_up(self) -> bool:
        """Whether partitions are to be given up."""
        return self.kind in {DISCONNECT, ONLY_DISCONNECT}


class Report(msgspec.Struct, frozen=True):
    """The content of one heartbeat.

    Args:
        partitions: the assigned partitions, or None if this heartbeat does not list them.
        done: an instruction that has been carried out, or None.
    """

    partitions: tuple[Partition, ...] | None
    done: Instruction | None


class ReportedAssignment:
    """The partitions of one member, and the changes that the master does not know yet.

    >>> assignment = ReportedAssignment()
    >>> assignment.next_report()
    Report(partitions=None, done=None)
    >>> assignment.finished(Instruction(id=1, kind=ONLY_CONNECT))
    >>> assignment.next_report().partitions
    ()

    Attributes:
        loss: why a partition was lost, until one is assigned again.
    """

    def __init__(self) -> None:
        self.loss: CohererError | None = None
        self._partitions: dict[str, Partition] = {}
        self._reported: frozenset[str] = frozenset()
        self._heartbeats = 0  # since the last full report
        self._done: Instruction | None = None

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """The partitions, in the order in which they were taken."""
        return tuple(self._partitions.values())

    @property
    def is_reported(self) -> bool:
        """Whether the master knows all changes."""
        return self._done is None and self._reported == self._partitions.keys()

    def __contains__(self, key: str) -> bool:
        return key in self._partitions

    def missing(self, partitions: Iterable[Partition]) -> list[Partition]:
        """The partitions of `partitions` that are not assigned."""
        return [partition for partition in partitions if partition.key not in self._partitions]

    def add(self, partition: Partition) -> None:
        """The partition's broker accepted the registration."""
        self._partitions[partition.key] = partition
        self.loss = None

    def remove(self, key: str) -> None:
        """The partition was given up, or lost."""
        self._partitions.pop(key, None)

    def finished(self, instruction: Instruction) -> None:
        """An instruction has been carried out, as far as it could be."""
        self._done = instruction

    def next_report(self) -> Report:
        """The content of the next heartbeat; call `accepted` when the master has answered it."""
        due = self._heartbeats + 1 >= REPORT_EVERY
        if self.is_reported and not due:
            return Report(None, None)
        return Report(self.partitions, self._done)

    def accepted(self, report: Report) -> None:
        """The master answered the heartbeat with this content."""
        self._heartbeats += 1
        if report.done is self._done:
            self._done = None
        if report.partitions is not None:
            self._heartbeats = 0
            self._reported = frozenset(partition.key for partition in report.partitions)

    def registered(self) -> None:
        """The master accepted a registration, which listed the partitions."""
        self._heartbeats = 0
        self._done = None
        self._reported = frozenset(self._partitions)


class Membership:
    """One member of a group.

    Args:
        instructed: called with each instruction of the master; after carrying it out, the caller
            calls `assignment.finished` and `hurry`.
        ended: called when the master has permanently refused this member; see `failure`.

    Attributes:
        member: the consumer id.
        assignment: its partitions.
        credentials: for brokers.
        group_rules: how fast this group may read.
        default_rules: how fast any group may read.
        priority: the id of the group's read priority.
        not_allocated: whether the group of a bound consumer has not begun yet.
        failure: the refusal that ended the membership.
        trouble: why the last heartbeat failed; None if it was answered.
    """

    def __init__(
        self,
        cluster: Cluster,
        subscription: Subscription,
        instructed: Callable[[Instruction], None],
        ended: Callable[[], None],
    ) -> None:
        self.member = ""
        self.assignment = ReportedAssignment()
        self.credentials = cluster.credentials()
        self.group_rules = NO_RULES
        self.default_rules = NO_RULES
        self.priority: int = UNDEFINED
        self.not_allocated = True
        self.failure: CohererError | None = None
        self.trouble: CohererError | None = None
        self._cluster = cluster
        self._subscription = subscription
        self._instructed = instructed
        self._ended = ended
        self._local_host = ""
        self._registered = False
        self._since_ms = machine.wall_ns() // 1_000_000
        self._group_check: int = UNDEFINED
        self._default_check: int = UNDEFINED
        self._period_ms = cluster.options.heartbeat_ms
        self._quick = 0
        self._wait = backoff()
        self._awake = asyncio.Event()
        self._heartbeat_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Register; retried until the client's timeout.

        Raises:
            UnavailableError: no master could be reached.
            RefusedError: the master refused, or a topic does not exist.
        """
        timeout_ms = self._cluster.options.timeout_ms
        final = FINAL_CODES
        if not all(map(is_tubemq_topic, self._subscription.topics)):  # never created
            final |= {ResultCode.TOPIC_NOT_DEPLOYED}
        await retry(self._join, timeout_ms=timeout_ms, final=final, masters=self._cluster.masters)

    def begin(self) -> None:
        """Begin to send heartbeats; instructions may arrive from now on."""
        self.hurry()
        self._heartbeat_task = asyncio.create_task(
            self._send_heartbeats(), name="consumer heartbeats"
        )

    def hurry(self) -> None:
        """Send a heartbeat now, and more soon: there are changes to report or to expect."""
        self._quick = QUICK_HEARTBEATS
        self._wait = backoff()
        self._awake.set()

    async def stop(self) -> None:
        """Leave the group. A failure is only logged."""
        await cancel(self._heartbeat_task)
        if not self._registered:
            return
        self._registered = False
        request = pb.CloseRequestC2M(
            clientId=self.member,
            groupName=self._subscription.group,
            authInfo=self.credentials.for_master(),
        )
        try:
            await self._cluster.masters.ask(methods.CONSUMER_CLOSE, request, pb.CloseResponseM2C)
        except CohererError as error:
            _log.info("Unregistering a consumer failed: %s", error)

    # -- inside

    async def _send_heartbeats(self) -> None:
        refusals = 0
        while True:
            self._awake.clear()
            instruction: Instruction | None = None
            try:
                instruction = await self._send_heartbeat()
                refusals, self.trouble = 0, None
            except CohererError as error:
                self.trouble = error
                refused = isinstance(error, codes.CertificateError)
                refusals = refusals + 1 if refused else 0
                final = error.code in FINAL_CODES or isinstance(error, UsageError)
                if refusals > REFUSALS_MAX or (final and not refused):
                    self.failure = error
                    _log.error("The membership in %s ended: %s", self._subscription.group, error)
                    self._ended()
                    return
                _log.warning(
                    "A heartbeat of consumer %s failed: %s", self.member, error, about=self.member
                )
            except Exception:  # noqa: BLE001 - without heartbeats all partitions would be lost
                _log.exception("A heartbeat of consumer %s failed", self.member, about=self.member)
            if instruction is not None:
                self._quick = QUICK_HEARTBEATS
                self._wait = backoff()
                self._instructed(instruction)
            await self._pause()

    async def _pause(self) -> None:
        pause = self._period_ms / 1000
        if self._quick > 0:
            self._quick -= 1
            pause = min(pause, self._wait())
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._awake.wait()

    async def _join(self) -> None:
        if not self.member:
            self._local_host = await self._cluster.local_host()
            name = client_id(self._local_host, "Pull")
            self.member = f"{self._subscription.group}_{name}"
        await self._register()

    async def _register(self) -> None:
        partitions = self.assignment.partitions
        request = pb.RegisterRequestC2M(
            clientId=self.member,
            groupName=self._subscription.group,
            hostName=self._local_host,
            topicList=sorted(self._subscription.topics),
            subscribeInfo=self._subscribe_infos(partitions),
            topicCondition=[
                TopicCondition(topic, tuple(sorted(filters))).text()
                for topic, filters in sorted(self._subscription.topics.items())
                if filters
            ],
            requireBound=self._subscription.bound is not None,
            sessionTime=self._since_ms,
            groupFlowCheckId=self._group_check,
            defFlowCheckId=self._default_check,
            qryPriorityId=self.priority,
            authInfo=self.credentials.for_master(),
        )
        bound = self._subscription.bound
        if bound is not None:
            request.sessionKey = bound.session
            request.totalCount = bound.members
            request.requiredPartition = required_partitions(bound.offsets)
            request.notAllocated = self.not_allocated
            request.selectBig = bound.prefer == "larger"
        masters = self._cluster.masters
        before, self._registered = self._registered, True  # also if the answer is lost
        try:
            answer = await masters.ask(methods.CONSUMER_REGISTER, request, pb.RegisterResponseM2C)
        except ConnectError:
            self._registered = before
            raise
        checked(answer, server=masters.server)
        for topic in answer.createdTopics:
            _log.warning(
                "Topic %s did not exist: the master created it for this consumer. Is its name "
                "spelled as the producers spell it?",
                topic,
                topic=topic,
                group=self._subscription.group,
            )
        self.assignment.registered()
        self._update(answer)

    async def _send_heartbeat(self) -> Instruction | None:
        report = self.assignment.next_report()
        request = pb.HeartRequestC2M(
            clientId=self.member,
            groupName=self._subscription.group,
            subscribeInfo=self._subscribe_infos(report.partitions or ()),
            reportSubscribeInfo=report.partitions is not None,
            event=self._acknowledgement(report.done),
            defFlowCheckId=self._default_check,
            groupFlowCheckId=self._group_check,
            qryPriorityId=self.priority,
            authInfo=self.credentials.for_master(),
        )
        masters = self._cluster.masters
        answer = await masters.ask(methods.CONSUMER_HEARTBEAT, request, pb.HeartResponseM2C)
        if answer.errCode == ResultCode.HB_NO_NODE:
            _log.info("The master has forgotten consumer %s", self.member)
            await self._register()
            self.hurry()
            return None
        checked(answer, server=masters.server)
        if answer.requireAuth and not self.credentials.signs:
            raise UsageError(
                "The master requires authentication.",
                server=masters.server,
                code=ResultCode.CERTIFICATE_FAILURE,
                hint="Give `user` and `password` to `connect`.",
            )
        self.assignment.accepted(report)
        self._update(answer)
        return self._instruction(answer)

    def _subscribe_infos(self, partitions: Iterable[Partition]) -> list[str]:
        group = self._subscription.group
        return [SubscribeInfo(self.member, group, partition).text() for partition in partitions]

    def _acknowledgement(self, done: Instruction | None) -> pb.EventProto | None:
        if done is None:
            return None
        return pb.EventProto(
            rebalanceId=done.id,
            opType=done.kind,
            status=DONE,
            subscribeInfo=self._subscribe_infos(done.partitions),
        )

    def _instruction(self, answer: pb.HeartResponseM2C) -> Instruction | None:
        event = answer.event
        if not answer.HasField("event") or event.rebalanceId <= 0:
            return None
        infos = [SubscribeInfo.parse(text) for text in event.subscribeInfo]
        for info in infos:
            if info.partition.topic not in self._subscription.topics:
                raise ProtocolError(
                    f"The master assigns a partition of another topic, {info.text()}.",
                    server=self._cluster.masters.server,
                )
        return Instruction(event.rebalanceId, event.opType, tuple(info.partition for info in infos))

    def _update(self, answer: pb.RegisterResponseM2C | pb.HeartResponseM2C) -> None:
        if answer.HasField("authorizedInfo"):
            self.credentials.renew(answer.authorizedInfo)
        if answer.HasField("notAllocated") and not answer.notAllocated:
            self.not_allocated = False
        if answer.HasField("qryPriorityId"):
            self.priority = answer.qryPriorityId
        if answer.HasField("heartbeatMs") and answer.heartbeatMs > 0:
            self._period_ms = min(self._cluster.options.heartbeat_ms, answer.heartbeatMs)
        # Rules come with their id if it is not the one in the request; otherwise they are blank.
        if answer.HasField("defFlowCheckId") and answer.defFlowCheckId != self._default_check:
            self._default_check = answer.defFlowCheckId
            self.default_rules = FlowRules.parse(answer.defFlowControlInfo)
        if answer.HasField("groupFlowCheckId") and answer.groupFlowCheckId != self._group_check:
            self._group_check = answer.groupFlowCheckId
            self.group_rules = FlowRules.parse(answer.groupFlowControlInfo)
