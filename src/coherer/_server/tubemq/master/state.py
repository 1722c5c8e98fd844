"""The state of a master: catalog, registries, clocks, and the file that survives a restart.

A handler that changes the catalog, or records a report of a broker, calls
`MasterState.apply_changes` before it answers. That saves the catalog, makes a balance due for
groups whose topics have changed, and notifies watchers of the configuration (a broker in the same
process, which then applies it at once).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import msgspec

from coherer import limits
from coherer._common import machine
from coherer._common.decoding import decoder
from coherer._common.logs import Log
from coherer._common.masking import masked
from coherer._record.system_topics import is_system_topic
from coherer._rules.tubemq.assignment import Partition
from coherer._rules.tubemq.catalog import Catalog
from coherer._rules.tubemq.groups import ConsumerGroup, ConsumerGroups, GroupTiming, Member
from coherer._rules.tubemq.records import UNDEFINED, Change, valid_topic
from coherer._rules.tubemq.registry import BrokerRegistry, BrokerRegistryTiming, Producers
from coherer._server.options.tubemq import MasterOptions
from coherer._server.tubemq.histogram import Histogram
from coherer._server.tubemq.master.access import Authenticator, Identity, VisitTokens
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.names import BLANK, BrokerInfo, is_own_client
from coherer.errors import CohererError, DamagedStoreError, StoreError

_log = Log(logging.getLogger(__name__))

_MEMBERS_AGE_MS_MAX = 600_000
"""Saved members of groups are ignored if they are older, because few of them will return."""

_SAVE_RETRY_MS = 5_000
"""The time between a failed save and the next attempt."""

_MEMBERS_SAVE_MS = 60_000
"""How often unchanged members are saved again, to renew their age."""


class Peer(msgspec.Struct, frozen=True):
    """Where a request came from.

    Args:
        host: the address of the client.
        secure: whether it uses TLS; then answers contain the TLS ports of brokers.
    """

    host: str
    secure: bool


class StandbyError(CohererError):
    """This master is a standby and refuses requests; ask the active one."""


class _Saved(msgspec.Struct, kw_only=True):
    """The content of the master's file.

    Besides the catalog: the members of each group and when they were saved, and the key of the
    visit tokens if brokers check these.
    """

    catalog: msgspec.Raw
    members: dict[str, list[str]] = msgspec.field(name="roll", default_factory=dict[str, list[str]])
    members_ms: int = msgspec.field(name="roll_ms", default=0)
    visit_key: str = ""

    def __repr__(self) -> str:
        return masked(self, "visit_key")


class MasterCounters:
    """Events of a master since the counters were last reset.

    Attributes:
        since_ms: when they were reset, ms since 1970.
        producers_timed_out: producers that have timed out; the same for consumers and brokers.
        groups_timed_out: groups whose last member has timed out.
        client_balanced_timed_out: the client-balanced ones of these groups.
        balances: the durations of balances.
    """

    def __init__(self, now_ms: int) -> None:
        self.balances = Histogram()
        self.clear(now_ms)

    def clear(self, now_ms: int) -> None:
        """Reset all counters."""
        self.since_ms = now_ms
        self.producers_timed_out = self.consumers_timed_out = self.brokers_timed_out = 0
        self.groups_timed_out = self.client_balanced_timed_out = 0
        self.balances.clear()


def check_saved(data: bytes) -> None:
    """Check the content of a master's file.

    Raises:
        DamagedStoreError: the content is not valid.
    """
    _parse(data)


def _parse(data: bytes) -> tuple[_Saved, Catalog]:
    try:
        stored = decoder(_Saved).decode(data)
        return stored, Catalog.load(bytes(stored.catalog))
    except msgspec.DecodeError as error:
        raise DamagedStoreError(f"The master's catalog cannot be read: {error}.") from error


def _always() -> bool:
    return True


class MasterState:
    """The state that the handlers of a master share.

    Attributes:
        standby: whether it refuses requests.
        may_act: returns whether it may act now; a master with standbys stops when its lease ends.
        watchers: called when the configuration of brokers has changed.
        catalog: the persistent configuration.
        visit_tokens: the tokens that prove to brokers that a client has registered at a master.
        broker_list_id: changes with the list of brokers; clients echo it.
        master_id: a random id of this run of the master. Clients receive it, and the HTTP
            administration shows it, which proves that both belong to the same master.
        counters: the figures of the HTTP administration.
        began_ms: when it started or became active; brokers and clients register from then on.
    """

    catalog: Catalog
    broker_registry: BrokerRegistry
    producers: Producers
    groups: ConsumerGroups
    authenticator: Authenticator
    visit_tokens: VisitTokens
    broker_list_id: int
    began_ms: int

    def __init__(
        self,
        options: MasterOptions,
        load: Callable[[], bytes | None],
        save: Callable[[Callable[[], bytes]], None],
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
    ) -> None:
        self.options = options
        self.master_id = machine.secret.randbytes(16).hex()
        self.now_ms = now_ms
        self.wall_ms = wall_ms
        self.standby = options.standby
        self.may_act: Callable[[], bool] = _always
        self.watchers: list[Callable[[], None]] = []
        self._load = load
        self._save = save
        self._save_error: StoreError | None = None
        self._save_retry_ms = 0
        self._last_id = 0
        self.counters = MasterCounters(wall_ms())
        self.begin()

    def begin(self) -> None:
        """Load the file, and start without registered clients and brokers.

        Raises:
            DamagedStoreError: the file is not valid.
        """
        options, now_ms = self.options, self.now_ms()
        self.began_ms = now_ms
        stored, self.catalog = self._stored()
        self.broker_registry = BrokerRegistry(
            self.catalog,
            BrokerRegistryTiming(
                timeout_ms=options.broker_timeout_ms,
                subscribe_delay_ms=options.subscribe_delay_ms,
                publish_delay_ms=options.publish_delay_ms,
                return_ms=options.broker_return_ms,
                stopped_max=options.stopped_brokers_max,
            ),
        )
        self.producers = Producers(options.producer_timeout_ms)
        timing = GroupTiming(
            retry_ms=options.balance_period_ms,
            event_resend_ms=options.event_resend_ms,
            event_expiry_ms=options.event_expiry_ms,
        )
        self.groups = ConsumerGroups(options.consumer_timeout_ms, timing)
        # Members saved in the future are recent: the clock has been set back since.
        if stored and self.wall_ms() < stored.members_ms + _MEMBERS_AGE_MS_MAX:
            self.groups.expect_members(
                stored.members,
                now_ms + options.return_ms,
                reports_often=is_own_client,
                absent_ms=options.absent_ms,
            )
        self.authenticator = Authenticator(options, self.wall_ms)
        key = bytes.fromhex(stored.visit_key) if stored and options.checks_visit_tokens else None
        self.visit_tokens = VisitTokens(options.visit_token_ms, now_ms, key)
        self.broker_list_id = self.new_id()
        self._brokers_version = self.catalog.brokers_version
        self._saved_version = self.catalog.version
        self._members: dict[str, list[str]] = stored.members if stored else {}
        self._members_ms = stored.members_ms if stored else 0
        self._members_due_ms = 0
        wanted = options.max_message_bytes
        if wanted is not None and wanted != self.catalog.cluster.message_bytes_max:
            self.catalog.set_cluster({"message_bytes_max": wanted}, self.change("options"))

    def _stored(self) -> tuple[_Saved | None, Catalog]:
        saved = self._load()
        if not saved:
            return None, Catalog()
        return _parse(saved)

    def new_id(self) -> int:
        """An id larger than all earlier ones, also of earlier runs: at least the time in ms."""
        self._last_id = max(self._last_id + 1, self.wall_ms())
        return self._last_id

    def change(self, user: str) -> Change:
        """A change by this user at the current time."""
        return Change(user=user, now_ms=self.wall_ms())

    @property
    def active(self) -> bool:
        """Whether it answers requests now."""
        return not self.standby and self.may_act()

    def require_active(self, client_id: str) -> None:
        """Refuse a request if this master is a standby.

        Raises:
            StandbyError: it is a standby.
        """
        if not self.active:
            address = f"{self.options.host}:{self.options.port}"
            raise StandbyError(
                f"{address} is not master now. the connecting client id is {client_id}"
            )

    # -- after changes

    def apply_changes(self, now_ms: int) -> None:
        """Act on changes of the catalog and of brokers. Cheap without changes."""
        touched = self.catalog.take_touched() | self.broker_registry.take_changed_topics(now_ms)
        if touched:
            self.groups.touch(touched, now_ms)
        if self.catalog.brokers_version != self._brokers_version:
            self._brokers_version = self.catalog.brokers_version
            self.broker_list_id = self.new_id()
        if self.catalog.version != self._saved_version:
            self._saved_version = self.catalog.version
            self._write(now_ms)
            for watcher in self.watchers:
                watcher()

    def commit_changes(self) -> None:
        """Act on changes by an administrator.

        Raises:
            StoreError: the changes are in effect, but could not be saved; that is retried.
        """
        self.apply_changes(self.now_ms())
        if self._save_error is not None:
            raise self._save_error

    def save_members(self, now_ms: int) -> None:
        """Save the members of groups if they have changed, and retry a failed save."""
        members = self.groups.member_ids(now_ms)
        old = members and now_ms >= self._members_due_ms
        if old or members != self._members:
            self._members, self._members_ms = members, self.wall_ms()
            self._members_due_ms = now_ms + _MEMBERS_SAVE_MS
            self._write(now_ms)
        elif self._save_error is not None and now_ms >= self._save_retry_ms:
            self._write(now_ms)

    def _write(self, now_ms: int) -> None:
        # A full disk must not make the master refuse heartbeats, so errors are only noted.
        try:
            self._save(self._content)
        except StoreError as error:
            if self._save_error is None:
                _log.error("Saving the master's catalog failed; will retry: %s", error)
            self._save_error = error
            self._save_retry_ms = now_ms + _SAVE_RETRY_MS
        else:
            self._save_error = None

    def _content(self) -> bytes:
        saved = _Saved(
            catalog=msgspec.Raw(self.catalog.dump()),
            members=self._members,
            members_ms=self._members_ms,
            visit_key=self.visit_tokens.key.hex() if self.options.checks_visit_tokens else "",
        )
        return msgspec.json.encode(saved)

    # -- topics and partitions

    def create_missing(self, topics: Iterable[str], user: str) -> None:
        """Create missing topics on all online brokers, if the options permit it."""
        online = {running.id for running in self.broker_registry if running.online}
        if not self.options.auto_create_topics or not online:
            return
        brokers = sorted(online | self.options.siblings)
        created = False
        for topic in topics:
            if topic in self.catalog.topics or not valid_topic(topic) or is_system_topic(topic):
                continue  # RocketMQ's system topics are not available over TubeMQ
            if len(self.catalog.topics) >= limits.TOPICS_MAX:
                break
            created = bool(self.create_topic(topic, None, brokers, user)) or created
        if created:
            self.apply_changes(self.now_ms())

    def create_topic(
        self, topic: str, partitions: int | None, brokers: Iterable[int], user: str
    ) -> int:
        """Add a topic to these brokers. Returns to how many of them it was added."""
        count = 0
        for broker in brokers:
            record = self.catalog.brokers.get(broker)
            if record is None or broker in self.catalog.topics.get(topic, {}):
                continue
            props = msgspec.structs.replace(
                record.props, partitions=partitions or self.options.default_partitions
            )
            self.catalog.add_topic(topic, broker, props, self.change(user))
            count += 1
        return count

    def balance(self, group: ConsumerGroup, now_ms: int) -> None:
        """Balance a group if it is due. The answers to its members' heartbeats carry the events."""
        if not self.groups.is_due(group, now_ms):
            return
        topics = [
            topic
            for topic in sorted(group.subscription.topics)
            if (control := self.catalog.consumption(topic, group.name)) is None or control.enabled
        ]
        partitions = self.broker_registry.partitions(topics, now_ms)
        brokers = len({partition.broker for partition in partitions})
        rate_max = self.broker_rate_max(group.name)
        if group.members and brokers // len(group.members) > rate_max:
            group.due_ms = None
            return
        began_s = time.perf_counter()
        group.balance(
            partitions,
            dormant=lambda p: p.topic in topics and self.broker_registry.is_dormant(p, now_ms),
            new_id=self.new_id,
            now_ms=now_ms,
        )
        self.counters.balances.count(int((time.perf_counter() - began_s) * 1000))

    def plausible(self, reported: set[Partition], member: Member) -> frozenset[Partition]:
        """The reported partitions that exist, or that the member is known to hold."""
        # So a consumer cannot fill the master's memory with invented partitions, but still has to
        # give up partitions that have been removed.
        return frozenset(
            partition
            for partition in reported
            if partition in member.held or self._exists(partition)
        )

    def _exists(self, partition: Partition) -> bool:
        deployment = self.catalog.topics.get(partition.topic, {}).get(partition.broker)
        if deployment is None:
            return False
        store, number = divmod(partition.number, limits.TOPIC_PARTITIONS_MAX)
        return 0 <= store < deployment.props.stores and number < deployment.props.partitions

    def broker_rate_max(self, group: str) -> int:
        """The maximum number of brokers per consumer of the group."""
        control = self.catalog.group_controls.get(group)
        own = control.broker_rate_max if control and control.check_resources else 0
        return own or self.options.group_broker_rate_max

    # -- parts of answers

    def broker_list(self, *, secure: bool) -> list[str]:
        """All brokers of the catalog, whether registered or not."""
        return [
            self.broker_info(broker, secure=secure).text(tls=secure)
            for broker in sorted(self.catalog.brokers)
        ]

    def broker_info(self, broker: int, *, secure: bool) -> BrokerInfo:
        """The id and address of a broker.

        Raises:
            CatalogError: the broker has no record.
        """
        record = self.catalog.broker(broker)
        return BrokerInfo(record.id, record.host, record.tls_port if secure else record.port)

    def authorized(self, identity: Identity | None) -> pb.MasterAuthorizedInfo | None:
        """The tokens for a client; None if it is not authenticated."""
        if identity is None:
            return None
        info = pb.MasterAuthorizedInfo(visitAuthorizedToken=self.visit_tokens.valid)
        if identity.token:
            info.authAuthorizedToken = identity.token
        return info

    def flow_rules(self, held_id: int) -> tuple[int, str]:
        """Id and text of the cluster's flow rules; a blank text if the client has them already."""
        cluster = self.catalog.cluster
        if not cluster.flow_enabled:
            return UNDEFINED, BLANK
        return (
            cluster.stamp.serial,
            BLANK if held_id == cluster.stamp.serial else cluster.flow_rules,
        )

    def group_rules(self, group: str, held_id: int) -> tuple[int, str, int]:
        """Id and text of a group's flow rules, and its read priority."""
        control = self.catalog.group_controls.get(group)
        if control is None:
            return UNDEFINED, BLANK, UNDEFINED
        if not control.flow_enabled:
            return UNDEFINED, BLANK, control.priority
        serial = control.stamp.serial
        return serial, BLANK if held_id == serial else control.flow_rules, control.priority
