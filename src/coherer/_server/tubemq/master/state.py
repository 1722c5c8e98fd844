"""What the parts of a master share: its options, the rules' tables, its clock and its memory.

Whoever changes the catalog, or books something of a broker, calls `MasterState.absorb` before it
answers: that saves what has to survive, tells the groups whose topics have changed, and tells
those who watch the configuration (the broker in the same process, which then takes it at once).
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable

import msgspec

from coherer import limits
from coherer._common.logs import Log
from coherer._common.masking import masked
from coherer._record.system_topics import is_system_topic
from coherer._rules.tubemq.balance import Partition
from coherer._rules.tubemq.catalog import Catalog
from coherer._rules.tubemq.configuration import UNDEFINED, Change, valid_topic
from coherer._rules.tubemq.fleet import Fleet, FleetTiming
from coherer._rules.tubemq.membership import Groups, Producers
from coherer._rules.tubemq.rebalance import Group, GroupTiming, Member
from coherer._server.node.admin_figures import Histogram
from coherer._server.tubemq.master.access import Credentials, Proof, VisitTokens
from coherer._server.tubemq.master.options import MasterOptions
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.names import BLANK, BrokerInfo, is_own_client
from coherer.errors import CohererError, DamagedStoreError, StoreError

_log = Log(logging.getLogger(__name__))

_ROLL_AGE_MS_MAX = 600_000
"""A roll of members that is older says nothing about who is still alive."""

_WRITE_AGAIN_MS = 5_000
"""How long after a failed write the next is tried."""

_ROLL_PERIOD_MS = 60_000
"""How often the roll is written anew while it stays the same, to say that it still holds."""


class Caller(msgspec.Struct, frozen=True):
    """Where a request came from.

    Args:
        host: the peer's address.
        secure: whether over TLS: then brokers are named with their TLS ports.
    """

    host: str
    secure: bool


class StandbyError(CohererError):
    """This master is a standby and does no business; another one has to be asked."""


class _Saved(msgspec.Struct, kw_only=True):
    """What a master keeps on disk.

    Beside its catalog: who was in which group when, and the key of the visit tokens, where brokers
    check these.
    """

    catalog: msgspec.Raw
    roll: dict[str, list[str]] = msgspec.field(default_factory=dict[str, list[str]])
    roll_ms: int = 0
    visit_key: str = ""

    def __repr__(self) -> str:
        return masked(self, "visit_key")


class Counts:
    """What a master has seen happen since somebody asked for it to be counted anew.

    Attributes:
        since_ms: when that was, ms since 1970.
        producers_timed_out: producers that were silent for too long; consumers, brokers likewise.
        groups_timed_out: groups whose last member was; `choosers_timed_out` those among them that
            balance themselves.
        balances: how long the balance of a group took.
    """

    def __init__(self, now_ms: int) -> None:
        self.balances = Histogram()
        self.clear(now_ms)

    def clear(self, now_ms: int) -> None:
        """Begin anew."""
        self.since_ms = now_ms
        self.producers_timed_out = self.consumers_timed_out = self.brokers_timed_out = 0
        self.groups_timed_out = self.choosers_timed_out = 0
        self.balances.clear()


def check_saved(data: bytes) -> None:
    """Check that this is what a master keeps.

    Raises:
        DamagedStoreError: it is not.
    """
    _parse(data)


def _parse(data: bytes) -> tuple[_Saved, Catalog]:
    try:
        stored = msgspec.json.decode(data, type=_Saved)
        return stored, Catalog.load(bytes(stored.catalog))
    except msgspec.DecodeError as error:
        raise DamagedStoreError(f"The master's catalog cannot be read: {error}.") from error


class MasterState:
    """The parts of a master meet here.

    Attributes:
        options: what the master was told.
        now_ms: a clock that is not set.
        wall_ms: the time of day.
        standby: whether it refuses all business.
        watchers: called when the configuration of brokers has changed.
        catalog: what survives.
        fleet: the brokers that are there.
        producers: the producers that are there.
        groups: the consumers that are there.
        credentials: who may come in.
        visit_tokens: what shows brokers that a client came through a master.
        broker_list_id: changes with the list of brokers; clients echo it.
        master_id: a random name of this run of the master. Clients hear it, and the HTTP
            administration repeats it, so that both are known to be of one master.
        counts: what the administration shows.
    """

    catalog: Catalog
    fleet: Fleet
    producers: Producers
    groups: Groups
    credentials: Credentials
    visit_tokens: VisitTokens
    broker_list_id: int

    def __init__(
        self,
        options: MasterOptions,
        load: Callable[[], bytes | None],
        save: Callable[[Callable[[], bytes]], None],
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
    ) -> None:
        self.options = options
        self.master_id = secrets.token_hex(16)
        self.now_ms = now_ms
        self.wall_ms = wall_ms
        self.standby = options.standby
        self.watchers: list[Callable[[], None]] = []
        self._load = load
        self._save = save
        self._unsaved: StoreError | None = None
        self._write_again_ms = 0
        self._last_id = 0
        self.counts = Counts(wall_ms())
        self.begin()

    def begin(self) -> None:
        """Start with what is on disk and nobody there.

        Raises:
            DamagedStoreError: nobody can read it.
        """
        options, now_ms = self.options, self.now_ms()
        stored, self.catalog = self._stored()
        self.fleet = Fleet(
            self.catalog,
            FleetTiming(
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
        self.groups = Groups(options.consumer_timeout_ms, timing)
        # A roll from the future is young: the clock was set back since.
        if stored and self.wall_ms() < stored.roll_ms + _ROLL_AGE_MS_MAX:
            self.groups.await_members(
                stored.roll,
                now_ms + options.return_ms,
                prompt=is_own_client,
                absent_ms=options.absent_ms,
            )
        self.credentials = Credentials(options, self.wall_ms)
        key = bytes.fromhex(stored.visit_key) if stored and options.checks_visit_tokens else None
        self.visit_tokens = VisitTokens(options.visit_token_ms, now_ms, key)
        self.broker_list_id = self.new_id()
        self._brokers_version = self.catalog.brokers_version
        self._saved_version = self.catalog.version
        self._roll: dict[str, list[str]] = stored.roll if stored else {}
        self._roll_ms = stored.roll_ms if stored else 0
        self._roll_again_ms = 0
        wanted = options.max_message_bytes
        if wanted is not None and wanted != self.catalog.cluster.message_bytes_max:
            self.catalog.set_cluster({"message_bytes_max": wanted}, self.change("options"))

    def _stored(self) -> tuple[_Saved | None, Catalog]:
        saved = self._load()
        if not saved:
            return None, Catalog()
        return _parse(saved)

    def new_id(self) -> int:
        """An id that is larger than all before, those of earlier runs too: it looks like a time."""
        self._last_id = max(self._last_id + 1, self.wall_ms())
        return self._last_id

    def change(self, user: str) -> Change:
        """A change by this user, now."""
        return Change(user=user, now_ms=self.wall_ms())

    def require_active(self, client_id: str) -> None:
        """Refuse business when this is a standby.

        Raises:
            StandbyError: it is.
        """
        if self.standby:
            address = f"{self.options.host}:{self.options.port}"
            raise StandbyError(
                f"{address} is not master now. the connecting client id is {client_id}"
            )

    # -- when something has changed

    def absorb(self, now_ms: int) -> None:
        """Act on what has changed in the catalog and with the brokers; cheap when nothing has."""
        touched = self.catalog.take_touched() | self.fleet.news(now_ms)
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

    def settle(self) -> None:
        """Act on what an administrator has changed.

        Raises:
            StoreError: it counts, but could not be saved; that is tried again.
        """
        self.absorb(self.now_ms())
        if self._unsaved is not None:
            raise self._unsaved

    def remember(self, now_ms: int) -> None:
        """Write who is in which group, if that is news, and what could not be written before."""
        roll = self.groups.roll(now_ms)
        old = roll and now_ms >= self._roll_again_ms
        if old or roll != self._roll:
            self._roll, self._roll_ms = roll, self.wall_ms()
            self._roll_again_ms = now_ms + _ROLL_PERIOD_MS
            self._write(now_ms)
        elif self._unsaved is not None and now_ms >= self._write_again_ms:
            self._write(now_ms)

    def _write(self, now_ms: int) -> None:
        """Write everything that has to survive. A full disk is no reason to refuse heartbeats."""
        try:
            self._save(self._content)
        except StoreError as error:
            if self._unsaved is None:
                _log.error("The master's catalog is not saved; it will be tried again: %s", error)
            self._unsaved = error
            self._write_again_ms = now_ms + _WRITE_AGAIN_MS
        else:
            self._unsaved = None

    def _content(self) -> bytes:
        saved = _Saved(
            catalog=msgspec.Raw(self.catalog.dump()),
            roll=self._roll,
            roll_ms=self._roll_ms,
            visit_key=self.visit_tokens.key.hex() if self.options.checks_visit_tokens else "",
        )
        return msgspec.json.encode(saved)

    # -- topics and partitions

    def create_missing(self, topics: Iterable[str], user: str) -> None:
        """Create the topics that are not there, if that is wanted, on all brokers that serve."""
        online = [running.id for running in self.fleet if running.online]
        if not self.options.auto_create_topics or not online:
            return
        created = False
        for topic in topics:
            if topic in self.catalog.topics or not valid_topic(topic) or is_system_topic(topic):
                continue  # what is RocketMQ's own is no topic of our broker's TubeMQ door
            if len(self.catalog.topics) >= limits.TOPICS_MAX:
                break
            created = bool(self.create_topic(topic, None, online, user)) or created
        if created:
            self.absorb(self.now_ms())

    def create_topic(
        self, topic: str, partitions: int | None, brokers: Iterable[int], user: str
    ) -> int:
        """Book a topic on these brokers, and return on how many it is new."""
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

    def balance(self, group: Group, now_ms: int) -> None:
        """Balance a group if it is due: its members hear of it in answers to their heartbeats."""
        if not self.groups.is_due(group, now_ms):
            return
        topics = [
            topic
            for topic in sorted(group.subscription.topics)
            if (control := self.catalog.consumption(topic, group.name)) is None or control.enabled
        ]
        partitions = self.fleet.partitions(topics, now_ms)
        brokers = len({partition.broker for partition in partitions})
        rate_max = self.broker_rate_max(group.name)
        if group.members and brokers // len(group.members) > rate_max:
            group.due_ms = None
            return
        began_s = time.perf_counter()
        group.balance(
            partitions,
            dormant=lambda p: p.topic in topics and self.fleet.is_dormant(p, now_ms),
            new_id=self.new_id,
            now_ms=now_ms,
        )
        self.counts.balances.count(int((time.perf_counter() - began_s) * 1000))

    def plausible(self, reported: set[Partition], member: Member) -> frozenset[Partition]:
        """What a consumer may hold of what it says: partitions that exist, or that we gave it.

        So a consumer cannot fill our memory with inventions, and still has to give up what was
        removed meanwhile.
        """
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
        """Brokers per consumer that a group may have."""
        control = self.catalog.group_controls.get(group)
        own = control.broker_rate_max if control and control.check_resources else 0
        return own or self.options.group_broker_rate_max

    # -- what several answers hold

    def broker_list(self, *, secure: bool) -> list[str]:
        """All brokers that have a record, also those that are away."""
        return [
            self.broker_info(broker, secure=secure).text(tls=secure)
            for broker in sorted(self.catalog.brokers)
        ]

    def broker_info(self, broker: int, *, secure: bool) -> BrokerInfo:
        """A broker as its clients know it.

        Raises:
            CatalogError: it has no record.
        """
        record = self.catalog.broker(broker)
        return BrokerInfo(record.id, record.host, record.tls_port if secure else record.port)

    def authorized(self, proof: Proof | None) -> pb.MasterAuthorizedInfo | None:
        """The tokens that a client is given; None while it has proven nothing."""
        if proof is None:
            return None
        info = pb.MasterAuthorizedInfo(visitAuthorizedToken=self.visit_tokens.valid)
        if proof.token:
            info.authAuthorizedToken = proof.token
        return info

    def flow_rules(self, held_id: int) -> tuple[int, str]:
        """Id and text of the cluster's flow rules; a blank when the client has them already."""
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
