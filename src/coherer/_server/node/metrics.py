"""The metrics of a node, in Prometheus' text format.

Names and labels are those of RocketMQ 5.1's broker where it has the metric, so that dashboards and
alert rules for it work here. Messages over TubeMQ count like those over RocketMQ: both are in one
store. Metrics that only TubeMQ has are named `tubemq_…` after Java's, metrics of the process have
Prometheus' standard names, and metrics that only Coherer has are named `coherer_…`.

* An unknown value is absent, never zero: a group without committed offsets has no lag.
* Series of deleted topics and groups disappear.
* Collecting runs in slices: after `SLICE_S` the event loop runs.

`prometheus_client` is not used: it collects everything in one step, and its import takes 70 to
100 ms.
Tests read the result with its parser, and with a real Prometheus.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from coherer import _net as net
from coherer._common.caches import forget_unused
from coherer._common.distribution import Distribution
from coherer._common.node_status import NodeStatus
from coherer._common.version import __version__
from coherer._record import layout
from coherer._record.system_topics import RETRY_PREFIX, is_system_topic
from coherer._rules.rocketmq.stats import GROUP_GET_NUMS, GROUP_GET_SIZE
from coherer._server.core.core import Core
from coherer._server.node.counts import all_groups, all_topics, is_users_group, is_users_topic
from coherer._server.node.group_lag import GroupLags, Lag
from coherer._server.node.parts import NodeParts
from coherer._server.node.status import silent_members, status_of
from coherer._server.tubemq.master.admin import online_counts, timeout_counts
from coherer._wire.rocketmq.codes import version_name

if TYPE_CHECKING:  # only nodes that replicate load it
    from coherer._server.rocketmq.ha.replicator import Replicator

T = TypeVar("T")

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

SLICE_S: Final = 0.002
"""How long collecting may run before the event loop gets a turn."""

_CACHED: Final = 65_536
"""The number of topics, and of pairs of topic and group, whose labels are cached as text. With more
of them in use, each scrape would throw out what the next one needs."""

_STEP: Final = 16
"""The number of topics, groups, or pairs of them between two looks at the time of a slice."""

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Family(NamedTuple):
    """A metric.

    Args:
        kind: `counter`, `gauge` or `histogram`.
        help: a description of one sentence.
    """

    kind: str
    name: str
    help: str


FAMILIES: Final = (
    Family("counter", "rocketmq_messages_in_total", "Messages from producers."),
    Family("counter", "rocketmq_throughput_in_total", "Bytes of messages from producers."),
    Family("counter", "rocketmq_messages_out_total", "Messages that a group has fetched."),
    Family("counter", "rocketmq_throughput_out_total", "Bytes that a group has fetched."),
    Family("histogram", "rocketmq_message_size", "Sizes of messages from producers, in bytes."),
    Family("counter", "rocketmq_send_to_dlq_messages_total", "Dead letters of a group."),
    Family("counter", "rocketmq_commit_messages_total", "Committed transactions."),
    Family("counter", "rocketmq_rollback_messages_total", "Rolled back transactions."),
    Family(
        "histogram",
        "rocketmq_finish_message_latency",
        "Time from a half message to its commit, in seconds.",
    ),
    Family("gauge", "rocketmq_consumer_lag_messages", "Messages not acknowledged by a group."),
    Family(
        "gauge",
        "rocketmq_consumer_lag_latency",
        "Age of the oldest message that a group has not acknowledged, in ms.",
    ),
    Family("gauge", "rocketmq_consumer_inflight_messages", "Messages fetched, not acknowledged."),
    Family("gauge", "rocketmq_consumer_ready_messages", "Messages that wait to be fetched."),
    Family(
        "gauge",
        "rocketmq_consumer_queueing_latency",
        "Age of the oldest message that a group has not fetched, in ms.",
    ),
    Family("gauge", "rocketmq_consumer_connections", "Connected consumers, by group."),
    Family("gauge", "rocketmq_producer_connections", "Connected producers."),
    Family("gauge", "rocketmq_processor_watermark", "Requests that wait for the broker."),
    Family("gauge", "rocketmq_broker_permission", "Permission: 6 read and write, 4 read, 2 write."),
    Family("gauge", "rocketmq_topic_number", "Topics of users."),
    Family("gauge", "rocketmq_consumer_group_number", "Consumer groups of users."),
    Family("gauge", "rocketmq_storage_size", "Bytes of the commit log."),
    Family("gauge", "rocketmq_storage_flush_behind_bytes", "Bytes written but not synced."),
    Family(
        "gauge",
        "rocketmq_storage_dispatch_behind_bytes",
        "Bytes written that consumers cannot see yet.",
    ),
    Family("gauge", "rocketmq_storage_message_reserve_time", "Age of the oldest message, in ms."),
    Family("gauge", "tubemq_consumer_connections", "Consumers of TubeMQ, by group."),
    Family("gauge", "tubemq_producer_connections", "Producers of TubeMQ."),
    Family("gauge", "tubemq_broker_consume_online_cnt", "Partitions that consumers hold."),
    Family("counter", "tubemq_broker_consume_timeout_cnt_total", "Partition leases that expired."),
    Family("gauge", "tubemq_master_csm_online_group_cnt", "Groups with members."),
    Family("gauge", "tubemq_master_csm_client_bal_group_cnt", "Groups that balance themselves."),
    Family("gauge", "tubemq_master_consumer_online_cnt", "Consumers."),
    Family("gauge", "tubemq_master_consumer_con_event_cnt", "Assignments to be sent."),
    Family("gauge", "tubemq_master_consumer_discon_event_cnt", "Revocations to be sent."),
    Family("gauge", "tubemq_master_producer_online_cnt", "Producers."),
    Family("gauge", "tubemq_master_broker_configured_cnt", "Brokers that are configured."),
    Family("gauge", "tubemq_master_broker_online_cnt", "Brokers that send heartbeats."),
    Family("gauge", "tubemq_master_broker_abnormal_cnt", "Brokers paused after errors."),
    Family("gauge", "tubemq_master_broker_forbidden_cnt", "Brokers taken out of service."),
    Family("counter", "tubemq_master_csm_group_timeout_cnt_total", "Groups that timed out."),
    Family("counter", "tubemq_master_client_balance_timeout_cnt_total", "The same, self-balanced."),
    Family("counter", "tubemq_master_consumer_timeout_cnt_total", "Consumers that timed out."),
    Family("counter", "tubemq_master_producer_timeout_cnt_total", "Producers that timed out."),
    Family("counter", "tubemq_master_broker_timeout_cnt_total", "Brokers that timed out."),
    Family("gauge", "coherer_info", "The version of the node; always 1."),
    Family("gauge", "coherer_ready", "1 if the node is ready (/health/ready), otherwise 0."),
    Family("gauge", "process_start_time_seconds", "When the node started, since 1970."),
    Family("gauge", "process_resident_memory_bytes", "Memory of the process (resident size)."),
    Family(
        "gauge",
        "coherer_mapped_bytes",
        "Pages of mapped files in the resident size, which the system can drop.",
    ),
    Family("counter", "process_cpu_seconds_total", "User and system time of the process."),
    Family("histogram", "coherer_event_loop_lag_seconds", "How late timers of the node run."),
    Family("histogram", "coherer_append_messages", "How many messages are stored together."),
    Family("histogram", "coherer_sync_seconds", "How long a sync of the log takes."),
    Family("gauge", "coherer_damaged_bytes", "Bytes of the log that are damaged."),
    Family("gauge", "coherer_damaged_records", "Lost messages that the last start found."),
    Family("gauge", "coherer_slaves", "Slaves that copy the log of this master."),
    Family("gauge", "coherer_slave_behind_bytes", "What a slave has not copied yet, by address."),
    Family("gauge", "coherer_master_connected", "Whether this slave copies its master's log."),
    Family("gauge", "coherer_disk_bytes", "Size of the file system that holds the store."),
    Family("gauge", "coherer_disk_free_bytes", "Free space of that file system."),
    Family("gauge", "coherer_disk_free_min_bytes", "Sends are refused below this free space."),
    Family("gauge", "coherer_retention_limit_bytes", "Size limit of the log, if it has one."),
    Family("gauge", "coherer_connections", "Open connections."),
    Family("gauge", "coherer_connections_limit", "Limit of open connections per port."),
    Family("counter", "coherer_connections_refused_total", "Connections refused by the limit."),
    Family("gauge", "coherer_unfinished_bytes", "Bytes of partly received requests."),
    Family("gauge", "coherer_unfinished_bytes_limit", "Limit of unfinished bytes."),
    Family("gauge", "coherer_unsent_bytes", "Bytes that slow peers have not read yet."),
    Family("gauge", "coherer_unsent_bytes_limit", "Limit of unsent bytes."),
    Family("gauge", "coherer_broker_up", "With --brokers: 1 if the broker is up, otherwise 0."),
    Family("counter", "coherer_broker_restarts_total", "With --brokers: restarts of the broker."),
    Family("gauge", "coherer_tls_files_refused", "1 if new TLS files cannot be used, otherwise 0."),
    Family("gauge", "coherer_silent_consumers", "Consumers that do not answer, by group."),
    Family("counter", "coherer_upkeep_failures_total", "Failures of each step of periodic work."),
    Family("gauge", "coherer_log_file_bytes", "Size of one file of the log."),
    Family(
        "gauge",
        "coherer_retention_held_bytes",
        "Bytes of expired log files that are kept because messages in them still wait.",
    ),
    Family(
        "counter",
        "coherer_bad_system_records_total",
        "Records of system topics that were skipped because they are lost or invalid.",
    ),
    Family("gauge", "coherer_store_writable", "1 if messages can be stored, otherwise 0."),
)
"""All metrics, in the order of the text."""


class Metrics:
    """Collects the metrics of a node."""

    def __init__(self, node: NodeParts) -> None:
        self._node = node
        self._lags: GroupLags | None = None
        self._collecting = asyncio.Lock()

    async def status(self) -> NodeStatus:
        """The status of the node."""
        return status_of(self._node, await self.lags())

    async def lags(self) -> list[Lag]:
        """The lags of all groups, for metrics and status."""
        core = self._node.core
        if core is None:
            return []
        async with self._collecting:  # the collections share the places of messages
            if self._lags is None:
                self._lags = GroupLags(core)
            found: list[Lag] = []
            await _in_slices(map(found.extend, _steps(self._lags.collect())))
            return found

    async def text(self) -> bytes:
        """The text of all metrics."""
        return await asyncio.to_thread(b"".join, await self.pieces())  # megabytes, without the GIL

    async def pieces(self) -> list[bytes]:
        """The text of all metrics, in pieces."""
        options = self._node.options
        named = {"cluster": options.cluster, "node_type": "broker", "node_id": options.broker_name}
        page = Page(_text(named).removeprefix(","))
        lags = await self.lags()
        await _in_slices(self._collect(page, lags))
        return page.pieces()

    def _collect(self, page: Page, lags: Iterable[Lag]) -> Iterator[None]:
        """Fill the page in steps, between which other work may run."""
        node = self._node
        if node.core is not None:
            yield from _traffic(node.core, page)
            for some in _steps(lags):
                page.add_lags(some)
                yield
            _storage(node.core, page)
            for name, names, counts in (
                ("rocketmq_topic_number", all_topics(node), is_users_topic),
                ("rocketmq_consumer_group_number", all_groups(node), is_users_group),
            ):
                total = 0
                for group_or_topic in _steps(names):
                    total += sum(map(counts, group_or_topic))
                    yield
                page.add(name, total)
        yield from _rocketmq(node, page)
        yield from _tubemq(node, page)
        _siblings(node, page)
        silent: Counter[tuple[str, str]] = Counter()
        for members in silent_members(node):
            silent.update((one.group, one.protocol) for one in members)
            yield
        for (group, protocol), count in silent.items():
            labels = _text({"consumer_group": group, "protocol": protocol.lower()})
            page.add("coherer_silent_consumers", count, labels)
        self._process(page)
        for cached in (_of_topic, _of_group, _of_pair, _of_dead, _of_members):
            forget_unused(cached, page.series)

    def _process(self, page: Page) -> None:
        node, budget, memory = self._node, self._node.budget, net.memory()
        page.add("coherer_info", 1, _text({"version": __version__}))
        for name, value in {
            "coherer_ready": int(node.not_ready() is None),
            "process_start_time_seconds": node.load.started_s,
            "process_cpu_seconds_total": time.process_time(),
            "process_resident_memory_bytes": memory.resident,
            "coherer_mapped_bytes": memory.mapped,
            "coherer_connections": budget.connections.count,
            "coherer_connections_limit": budget.limits.connections_max,
            "coherer_connections_refused_total": budget.connections.refused,
            "coherer_unfinished_bytes": budget.unfinished.buffered_bytes,
            "coherer_unfinished_bytes_limit": budget.limits.unfinished_bytes,
            "coherer_unsent_bytes": budget.writes.unsent_bytes,
            "coherer_unsent_bytes_limit": budget.limits.write_buffers_bytes,
        }.items():
            page.add(name, value)
        if node.options.tls is not None:
            page.add("coherer_tls_files_refused", int(bool(node.certificates.problem)))
        for step, count in node.upkeep.failures.items():
            page.add("coherer_upkeep_failures_total", count, _text({"step": step}))
        page.add_histogram("coherer_event_loop_lag_seconds", node.load.loop_lag)


async def _in_slices(steps: Iterable[None]) -> None:
    """Run an iterator to its end, and let other work run in between."""
    slice_end_s = time.perf_counter() + SLICE_S
    for _ in steps:
        if time.perf_counter() > slice_end_s:
            await asyncio.sleep(0)
            slice_end_s = time.perf_counter() + SLICE_S


def _steps(items: Iterable[T]) -> Iterator[list[T]]:
    """Divide items that take microseconds each into lists; `_in_slices` looks at the time between.

    >>> list(map(len, _steps(range(40))))
    [16, 16, 8]
    """
    rest = iter(items)
    while some := list(islice(rest, _STEP)):
        yield some


def _siblings(node: NodeParts, page: Page) -> None:
    """Add the metrics of the brokers of `--brokers`."""
    for one in node.siblings:
        labels = _text({"broker": one.name})
        itself = one.broker_id == node.options.broker_id
        is_up = itself or (one.running and not one.problem)
        page.add("coherer_broker_up", int(is_up), labels)
        page.add("coherer_broker_restarts_total", one.restarts, labels)


class Page:
    """The lines of all metrics.

    Attributes:
        common: labels of every series, as text.
        series: their number; a histogram counts as one.
    """

    def __init__(self, common: str) -> None:
        self.common = common
        self.series = 0
        self._parts: dict[str, list[bytes]] = {one.name: [] for one in FAMILIES}

    def add(self, name: str, value: float | None, labels: str = "") -> None:
        """Add a series, unless its value is unknown."""
        if value is not None:
            self.add_lines(name, [f"{name}{{{self.common}{labels}}} {value}\n"])

    def add_lines(self, name: str, lines: Sequence[str]) -> None:
        """Add the lines of series of one metric; each has the common labels already."""
        if lines:
            self.series += len(lines)
            self._parts[name].append("".join(lines).encode())

    def add_histogram(self, name: str, found: Distribution, labels: str = "") -> None:
        """Add a histogram."""
        self.add_lines(name, [_histogram(name, found, self.common + labels)])

    def add_lags(self, lags: Sequence[Lag]) -> None:
        """Add the lags of groups in topics."""
        named = [self.common + _of_group(lag.topic, lag.group) for lag in lags]
        for name, values in (
            ("rocketmq_consumer_lag_messages", [lag.messages for lag in lags]),
            ("rocketmq_consumer_inflight_messages", [lag.messages - lag.ready for lag in lags]),
            ("rocketmq_consumer_ready_messages", [lag.ready for lag in lags]),
            ("rocketmq_consumer_lag_latency", [lag.age_ms for lag in lags]),
            ("rocketmq_consumer_queueing_latency", [lag.ready_age_ms for lag in lags]),
        ):
            found = [
                f"{name}{{{labels}}} {value}\n"
                for labels, value in zip(named, values, strict=True)
                if value is not None
            ]
            self.add_lines(name, found)

    def pieces(self) -> list[bytes]:
        """The text, in pieces; metrics without series are absent."""
        found: list[bytes] = []
        for one in FAMILIES:
            if parts := self._parts[one.name]:
                found.append(
                    f"# HELP {one.name} {one.help}\n# TYPE {one.name} {one.kind}\n".encode()
                )
                found += parts
        return found


def _histogram(name: str, found: Distribution, labels: str) -> str:
    """Return the lines of a histogram, which is one series."""
    head, total = f"{name}_bucket{{{labels}", 0
    parts: list[str] = []
    for bound, count in zip(_bounds(found.bounds), found.counts, strict=True):
        total += count
        parts.append(f"{head}{bound}{total}\n")
    tail = f"{{{labels}}}"
    parts.append(f"{name}_sum{tail} {found.sum}\n{name}_count{tail} {total}\n")
    return "".join(parts)


def _traffic(core: Core, page: Page) -> Iterator[None]:
    """Add the metrics of stored and delivered messages."""
    for incoming in _steps(list(core.counters.incoming.items())):
        named = [(page.common + _of_topic(*key), sizes) for key, sizes in incoming]
        name = "rocketmq_messages_in_total"
        page.add_lines(name, [f"{name}{{{at}}} {sum(one.counts)}\n" for at, one in named])
        name = "rocketmq_throughput_in_total"
        page.add_lines(name, [f"{name}{{{at}}} {one.sum}\n" for at, one in named])
        name = "rocketmq_message_size"
        page.add_lines(name, [_histogram(name, one, at) for at, one in named])
        yield
    for counter, name in (
        (GROUP_GET_NUMS, "rocketmq_messages_out_total"),
        (GROUP_GET_SIZE, "rocketmq_throughput_out_total"),
    ):
        for fetched in _steps(core.counters.stats.values(counter)):
            lines = [f"{name}{{{page.common}{_of_pair(at)}}} {value}\n" for at, value in fetched]
            page.add_lines(name, lines)
            yield
    for (topic, group), count in list(core.counters.dead.items()):
        page.add("rocketmq_send_to_dlq_messages_total", count, _of_dead(topic, group))
        yield
    for (topic, is_committed), count in list(core.counters.finished.items()):
        name = f"rocketmq_{'commit' if is_committed else 'rollback'}_messages_total"
        page.add(name, count, _text({"topic": topic}))
        yield
    for topic, took in list(core.counters.commits.items()):
        page.add_histogram("rocketmq_finish_message_latency", took, _text({"topic": topic}))
        yield
    page.add_histogram("coherer_append_messages", core.counters.appends)


def _storage(core: Core, page: Page) -> None:
    store = core.store
    page.add("rocketmq_storage_size", store.end_offset - store.min_offset, _LOG)
    behind_bytes = store.written_offset - store.durable_offset
    page.add("rocketmq_storage_flush_behind_bytes", behind_bytes, _LOG)
    invisible_bytes = store.written_offset - store.end_offset
    page.add("rocketmq_storage_dispatch_behind_bytes", invisible_bytes, _LOG)
    oldest = store.record_at(store.min_offset)
    if oldest is not None:
        age_ms = max(0, core.wall_ms() - layout.store_ms_of(oldest))
        page.add("rocketmq_storage_message_reserve_time", age_ms, _LOG)
    for name, value in {
        "coherer_damaged_bytes": sum(one.end - one.begin for one in store.log.damage),
        "coherer_damaged_records": store.recovery.lost,
        "coherer_retention_limit_bytes": store.options.retention_bytes,
        "coherer_retention_held_bytes": store.holds.held_bytes,
        "coherer_log_file_bytes": store.segment_bytes,
        "coherer_store_writable": int(core.disk.problem is None),
        "coherer_disk_bytes": core.disk.total,
        "coherer_disk_free_bytes": core.disk.free,
        "coherer_disk_free_min_bytes": core.disk.free_min,
    }.items():
        page.add(name, value)
    for topic, count in core.foreign.bad.items():
        page.add("coherer_bad_system_records_total", count, _text({"topic": topic}))
    page.add_histogram("coherer_sync_seconds", store.log.syncs)


def _rocketmq(node: NodeParts, page: Page) -> Iterator[None]:
    broker = node.rocketmq.broker
    if broker is None or node.core is None:
        return
    state = broker.state
    _replication(node.rocketmq.replicator, node.core.store.written_offset, page)
    page.add("rocketmq_broker_permission", state.options.perm)
    for processor, waiting in {
        "send": node.core.appender.waiting,
        "pull": broker.pulls.suspended.ending,
    }.items():
        labels = _text({"processor": processor})
        page.add("rocketmq_processor_watermark", waiting, labels)
    # Counted by labels: several version numbers have one name.
    producers: Counter[str] = Counter()
    for one in list(state.producers):
        producers[_client(one.language, one.version)] += 1
        yield
    for labels, count in producers.items():
        page.add("rocketmq_producer_connections", count, labels)
    for group in state.consumers.groups():
        members = Counter(_client(one.language, one.version) for one in group.members.values())
        mode = "pull" if group.settings.consume_type == "CONSUME_ACTIVELY" else "push"
        named = _of_members(group.name, mode)
        for labels, count in members.items():
            page.add("rocketmq_consumer_connections", count, labels + named)
        yield


def _replication(replicator: Replicator | None, end: int, page: Page) -> None:
    if replicator is None:
        return
    if replicator.slave is not None:
        page.add("coherer_master_connected", int(replicator.slave.link is not None))
    if replicator.master is not None:
        slaves = replicator.master.slaves
        page.add("coherer_slaves", len(slaves))
        behind: dict[str, int] = {}
        for one in slaves:
            host = one.connection.peer_host
            behind[host] = max(behind.get(host, 0), end - max(one.acked, 0))
        for host, lacking in behind.items():
            page.add("coherer_slave_behind_bytes", lacking, _text({"slave": host}))


def _tubemq(node: NodeParts, page: Page) -> Iterator[None]:
    broker, master = node.tubemq.broker, node.tubemq.master
    if broker is not None:
        state = broker.state
        holders: dict[str, set[str]] = {}
        for one in list(state.leases):
            holders.setdefault(one.group, set()).add(one.holder)
            yield
        for name, found in holders.items():
            page.add("tubemq_consumer_connections", len(found), _text({"consumer_group": name}))
            yield
        page.add("tubemq_broker_consume_online_cnt", len(state.leases))
        page.add("tubemq_broker_consume_timeout_cnt_total", state.readers_timed_out)
    if master is not None:
        page.add("tubemq_producer_connections", len(master.state.producers))
        for name, count in online_counts(master.state).items():
            page.add(f"tubemq_master_{name}", count)
        for name, count in timeout_counts(master.state).items():
            page.add(f"tubemq_master_{name}_total", count)


@lru_cache(maxsize=_CACHED)
def _of_topic(topic: str, kind: str) -> str:
    return _text({"topic": topic, "message_type": kind, **_system(topic, "")})


@lru_cache(maxsize=_CACHED)
def _of_group(topic: str, group: str) -> str:
    is_retry = str(topic.startswith(RETRY_PREFIX)).lower()
    named = {"consumer_group": group, "topic": topic, "is_retry": is_retry}
    return _text({**named, **_system(topic, group)})


@lru_cache(maxsize=_CACHED)
def _of_pair(pair: str) -> str:
    topic, _, group = pair.partition("@")
    return _of_group(topic, group)


@lru_cache(maxsize=_CACHED)
def _of_dead(topic: str, group: str) -> str:
    return _text({"consumer_group": group, "topic": topic, **_system(topic, group)})


@lru_cache(maxsize=_CACHED)
def _of_members(group: str, mode: str) -> str:
    return _text({"consumer_group": group, "consume_mode": mode, **_system("", group)})


def _system(topic: str, group: str) -> dict[str, str]:
    is_system = is_system_topic(topic) or (bool(group) and not is_users_group(group))
    return {"is_system": str(is_system).lower()}


@lru_cache(maxsize=_CACHED)
def _client(language: str | None, version: int) -> str:
    named = {"language": (language or "unknown").lower(), "version": version_name(version).lower()}
    return _text({**named, "protocol_type": "remoting"})


@lru_cache(maxsize=64)
def _bounds(bounds: tuple[float, ...]) -> tuple[str, ...]:
    """Return the end of the labels of each bucket of a histogram."""
    return tuple(f',le="{bound}"}} ' for bound in (*map(float, bounds), "+Inf"))


def _text(labels: Mapping[str, object]) -> str:
    r"""Format labels, each after a comma.

    >>> _text({"topic": 't"1', "le": 5})
    ',topic="t\\"1",le="5"'
    """
    return "".join(f',{name}="{str(value).translate(_ESCAPES)}"' for name, value in labels.items())


_LOG: Final = _text({"storage_type": "local", "storage_medium": "disk"})
