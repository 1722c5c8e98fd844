"""Heartbeats, locks and queries about connected clients.

See docs/protocol/rocketmq.md, sections 2.10, 2.12 and 3.6 to 3.12.

A heartbeat creates missing settings and `%RETRY%` topics of its groups, registers its clients, and
compiles their filters. The members of a group, including the new one, are notified of changes
before the heartbeat is answered. A member whose request for a lock was refused is notified when the
queue becomes free.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import msgspec

from coherer import limits
from coherer._common.decoding import decoder
from coherer._common.logs import Log
from coherer._common.upkeep import Step, Upkeep
from coherer._record.system_topics import RETRY_PREFIX
from coherer._rules.common.topics import UNIT_SUB
from coherer._rules.rocketmq.clients import (
    TAG,
    Changed,
    ClientInfo,
    ConsumerGroup,
    Event,
    GroupSettings,
    GroupSubscription,
    Registered,
    Unregistered,
)
from coherer._server.rocketmq.broker.state import RocketState, expression_fault, is_name
from coherer._server.rocketmq.remoting import Channel, Refusal
from coherer._wire.rocketmq import bodies, fastjson
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import GroupHeader, ProducerGroupHeader, TopicHeader, parse
from coherer._wire.rocketmq.names import (
    FEATURE_ENDS_ONCE,
    FEATURE_HALF_BATCHES,
    FEATURE_HEARTBEATS,
    FEATURE_TIMERS,
    FEATURES,
    HEARTBEAT_AGES,
)
from coherer.errors import DamagedStoreError

_SUPPORTED: Final = f"{FEATURE_TIMERS},{FEATURE_ENDS_ONCE},{FEATURE_HALF_BATCHES}"
_log = Log(logging.getLogger(__name__))

_FULL: Final = "this broker has no room for further clients or longer subscriptions"

FILTERS_FILE: Final = "consumerFilter.json"
LOCKS_FILE: Final = "queueLocks.json"
HOUSEKEEPING_MS: Final = 10_000
"""How often expired clients are dropped (section 3.9)."""
AGES_MAX: Final = 100
"""An answer contains at most this many ages of heartbeats, the highest ones."""
LOCK_CHECK_MS: Final = 1_000
"""How often expired locks are released."""


class ClientHandler:
    """Answers heartbeats, unregistrations, locks, and queries about connected clients."""

    def __init__(self, state: RocketState) -> None:
        self._state = state
        self.upkeep = Upkeep(
            Step("expiring queue locks", self._expire_locks, LOCK_CHECK_MS),
            Step("expiring RocketMQ clients", self._expire_clients, HOUSEKEEPING_MS),
            now_ms=state.now_ms,
        )
        self._saved_filters = b""
        self._saved_changes = 0
        self._load_filters()
        self._load_locks()

    # -- heartbeats

    def heartbeat(self, channel: Channel, request: Command) -> Command:
        """HEART_BEAT (34): register a client, its groups and their subscriptions.

        Raises:
            ProtocolError: the body is not a heartbeat.
            Refusal: the client or one of its groups has no name, or a bad one, or that of a client
                of another account, or the broker has too many clients; the groups before that one
                are registered.
        """
        data = bodies.HeartbeatData.decode(request.body)
        _checked_name(data.client_id, "client's id")
        _check_selectors(data)
        for consumer in data.consumer_data_set:
            self._register_consumer(consumer, self._client(channel, request, data.client_id))
        if data.producer_data_set:
            self._check_account(channel, data.client_id)
        for producer in data.producer_data_set:
            group = _checked_name(producer.group_name, "group's name")
            if not self._state.producers.has_room(group, channel):
                raise Refusal(ResponseCode.SYSTEM_ERROR, _FULL)
            self._state.producers.register(group, self._client(channel, request, data.client_id))
        features = {FEATURES: _SUPPORTED} if FEATURES in request.fields else {}
        return Command(ResponseCode.SUCCESS, fields=features)

    def _check_account(self, channel: Channel, client_id: str) -> None:
        """Refuse the id of a connected client of another account: it would get its replies.

        Raises:
            Refusal: the client belongs to another account.
        """
        other = self._state.producers.find(client_id)
        if other is None or other.closed or other.account == channel.account:
            return
        _log.error(
            "Account %s (%s) uses the client id %s of account %s (%s)",
            channel.account,
            channel.peer,
            client_id,
            other.account,
            other.peer,
            about=channel.connection.peer_host,
            peer=channel.peer,
        )
        remark = f"the client id {client_id} belongs to a client of another account"
        raise Refusal(ResponseCode.SYSTEM_ERROR, remark)

    def unregister(self, channel: Channel, request: Command) -> Command:
        """UNREGISTER_CLIENT (35): always succeeds."""
        producer_group = request.fields.get("producerGroup")
        if producer_group is not None:
            self._state.producers.unregister(producer_group, channel)
        group = request.fields.get("consumerGroup")
        if group is not None:
            settings = self._state.groups.get(group)
            notify = settings is None or settings.notify_consumer_ids_changed_enable
            self._handle_events(self._state.consumers.unregister(group, channel, notify=notify))
        return Command(ResponseCode.SUCCESS)

    def closed(self, channel: Channel) -> None:
        """Unregister the clients of a connection that has ended."""
        self._state.producers.close(channel)
        self._handle_events(self._state.consumers.close(channel))

    def _client(self, channel: Channel, request: Command, client_id: str) -> ClientInfo[Channel]:
        now_ms = self._state.now_ms()
        return ClientInfo(channel, client_id, request.language, request.version, now_ms)

    def _register_consumer(self, data: bodies.ConsumerData, client: ClientInfo[Channel]) -> None:
        state = self._state
        group = _checked_name(data.group_name, "group's name")
        wanted = [_subscription(one, client.updated_ms) for one in data.subscription_data_set]
        if not state.consumers.has_room(group, client.channel, wanted):
            raise Refusal(ResponseCode.SYSTEM_ERROR, _FULL)
        settings = state.group(group)
        notify = True
        if settings is not None:
            notify = settings.notify_consumer_ids_changed_enable
            state.topics.ensure_topic(
                f"{RETRY_PREFIX}{group}",
                settings.retry_queue_nums,
                state.now_ms(),
                sys_flag=UNIT_SUB if data.unit_mode else 0,
            )
        found = GroupSettings(data.consume_type, data.message_model, data.consume_from_where)
        _, events = state.consumers.register(group, client, found, wanted, notify=notify)
        self._handle_events(events)

    def _handle_events(self, events: Iterable[Event[Channel]]) -> None:
        """Handle the events of the rules in their order (section 3.8)."""
        for event in events:
            if isinstance(event, Changed):
                self._notify(event.group, event.channels)
            elif isinstance(event, Registered):
                self._state.filters.register(event.group, event.subscriptions, self._state.now_ms())
            else:
                self._forget(event)

    def _forget(self, event: Unregistered) -> None:
        self._state.filters.unregister(event.group, self._state.now_ms())

    def _notify(self, group: str, channels: Iterable[Channel]) -> None:
        """Send NOTIFY_CONSUMER_IDS_CHANGED (40) to members that keep up with reading."""
        if not self._state.options.notify_members:
            return
        fields = {"consumerGroup": group}
        for channel in channels:
            if not channel.connection.overloaded:
                channel.notify(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields)

    # -- queries

    def consumer_ids(self, _: Channel, request: Command) -> Command:
        """GET_CONSUMER_LIST_BY_GROUP (38): the client ids of a group.

        Raises:
            Refusal: the group has no members.
        """
        group = parse(GroupHeader, request.fields).consumer_group
        found = self._state.consumers.get(group)
        if found is None:
            remark = f"no consumer for this group, {group}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
        body = bodies.ConsumerIds(consumer_id_list=found.client_ids)
        return Command(ResponseCode.SUCCESS, body=body.encode())

    def check_client(self, _: Channel, request: Command) -> Command:
        """CHECK_CLIENT_CONFIG (46): whether the broker supports a filter expression.

        Raises:
            ProtocolError: the body is invalid.
            Refusal: it does not.
        """
        body = bodies.CheckClient.decode_or_none(request.body)
        wanted = None if body is None else body.subscription_data
        if wanted is None or _is_tag(wanted.expression_type):
            return Command(ResponseCode.SUCCESS)
        if not self._state.options.property_filter:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                "The broker does not support consumer to filter message by "
                f"{wanted.expression_type}",
            )
        fault = expression_fault(wanted.sub_string, wanted.expression_type)
        if fault is not None:
            raise Refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, fault)
        return Command(ResponseCode.SUCCESS)

    def consumer_connections(self, _: Channel, request: Command) -> Command:
        """GET_CONSUMER_CONNECTION_LIST (203): the members of a group, and its subscriptions.

        Raises:
            Refusal: the group has no members.
        """
        name = parse(GroupHeader, request.fields).consumer_group
        group = self._state.consumers.get(name)
        if group is None:
            raise Refusal(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online"
            )
        body = bodies.ConsumerConnection(
            connection_set=[_connection(member) for member in group.members.values()],
            subscription_table={
                topic: subscription_body(one) for topic, one in group.subscriptions.items()
            },
            consume_type=group.settings.consume_type,
            message_model=group.settings.message_model,
            consume_from_where=group.settings.consume_from,
        )
        fields: dict[str, str] = {}
        if FEATURE_HEARTBEATS in request.fields.get(FEATURES, "").split(","):
            fields[HEARTBEAT_AGES] = self._heartbeat_ages(group)
        return Command(ResponseCode.SUCCESS, fields=fields, body=body.encode())

    def _heartbeat_ages(self, group: ConsumerGroup[Channel]) -> str:
        now_ms = self._state.now_ms()
        late = sorted(group.members.values(), key=lambda one: one.updated_ms)[:AGES_MAX]
        ages = {one.client_id: now_ms - one.updated_ms for one in late}
        return fastjson.dumps(ages).decode()

    def producer_connections(self, _: Channel, request: Command) -> Command:
        """GET_PRODUCER_CONNECTION_LIST (204): the producers of a group.

        Raises:
            Refusal: there is no such group.
        """
        name = parse(ProducerGroupHeader, request.fields).producer_group
        members = self._state.producers.members(name)
        if members is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        body = bodies.ProducerConnection(connection_set=[_connection(one) for one in members])
        return Command(ResponseCode.SUCCESS, body=body.encode())

    def all_producers(self, _: Channel, request: Command) -> Command:  # noqa: ARG002 - a handler
        """GET_ALL_PRODUCER_INFO (328): the producers of all groups."""
        ahead_ms = self._state.wall_ms() - self._state.now_ms()
        data = {
            group: [
                bodies.ProducerInfo(
                    client_id=one.client_id,
                    remote_ip=f"/{one.channel.peer}",
                    language=one.language,
                    version=one.version,
                    last_update_timestamp=one.updated_ms + ahead_ms,
                )
                for one in members
            ]
            for group, members in self._state.producers.groups().items()
        }
        return Command(ResponseCode.SUCCESS, body=bodies.ProducerTable(data=data).encode())

    def groups_of_topic(self, _: Channel, request: Command) -> Command:
        """QUERY_TOPIC_CONSUME_BY_WHO (300): groups with subscriptions or offsets."""
        topic = parse(TopicHeader, request.fields).topic
        online = self._state.consumers.groups_of(topic)
        groups = dict.fromkeys([*online, *self._state.offsets.groups_of(topic)])
        return Command(ResponseCode.SUCCESS, body=bodies.GroupList(group_list=[*groups]).encode())

    # -- locks

    def lock(self, _: Channel, request: Command) -> Command:
        """LOCK_BATCH_MQ (41): take or renew locks on queues.

        Raises:
            ProtocolError: the body is invalid.
            Refusal: group or client have no name, or a bad one.
        """
        wanted = bodies.LockBatch.decode(request.body)
        group = _checked_name(wanted.consumer_group, "group's name")
        client_id = _checked_name(wanted.client_id, "client's id")
        granted = self._state.locks.lock(group, client_id, wanted.queues, self._state.now_ms())
        self._save_locks()
        return Command(ResponseCode.SUCCESS, body=bodies.LockedBatch(queues=granted).encode())

    def unlock(self, _: Channel, request: Command) -> Command:
        """UNLOCK_BATCH_MQ (42): release locks.

        Raises:
            ProtocolError: the body is invalid.
        """
        wanted = bodies.LockBatch.decode(request.body)
        group = wanted.consumer_group
        refused = self._state.locks.unlock(group, wanted.client_id, wanted.queues)
        self._save_locks()
        self._notify_refused(group, refused)
        return Command(ResponseCode.SUCCESS)

    def _save_locks(self) -> None:
        """Store who owns the locks, if that has changed. The request is answered afterwards."""
        locks = self._state.locks
        if locks.changes != self._saved_changes:
            self._saved_changes = locks.changes
            self._state.core.files.save(LOCKS_FILE, self._locks_now)

    def _locks_now(self) -> bytes:
        owned = self._state.locks.dump()
        return msgspec.json.encode(_LocksFile([bodies.LockBatch(*one) for one in owned]))

    def _load_locks(self) -> None:
        state = self._state
        if state.is_slave:
            # It does not know its master's locks, and may be started as the master next.
            state.locks.inherit(state.now_ms())
            self._save_locks()
            return
        try:
            found = state.store.read_config(LOCKS_FILE, parse_locks)
        except DamagedStoreError as error:
            _log.plain.error("%s Orderly consumers lock their queues again.", error)
            return
        owned = [(one.consumer_group, one.client_id, one.queues) for one in found or ()]
        state.locks.load(owned, state.now_ms())
        self._saved_changes = state.locks.changes

    def _notify_refused(self, group: str, refused: Iterable[str]) -> None:
        """Notify members that were refused a lock: it is free now, and they rebalance."""
        settings = self._state.groups.get(group)
        if settings is not None and not settings.notify_consumer_ids_changed_enable:
            return
        members = (self._state.consumers.find(group, client_id) for client_id in refused)
        # Java's broker does not: there, such a consumer waits up to 20 s for its next rebalance.
        self._notify(group, [member.channel for member in members if member is not None])

    # -- periodic work

    def _expire_locks(self) -> None:
        if self._state.is_slave:
            return
        for group, refused in self._state.locks.forget_expired(self._state.now_ms()).items():
            self._notify_refused(group, refused)
        self._save_locks()

    def _expire_clients(self) -> None:
        now_ms = self._state.now_ms()
        gone = [*self._state.producers.expire(now_ms), *self._state.consumers.expire(now_ms)]
        for channel in dict.fromkeys(gone):
            channel.close()

    def save_filters(self) -> None:
        """Write the filters if they have changed."""
        self._state.core.files.save(FILTERS_FILE, self._filters_now)

    def _filters_now(self) -> bytes:
        return self._state.filters.dump(self._state.now_ms())

    def _load_filters(self) -> None:
        state = self._state

        def parse(data: bytes) -> None:
            state.filters.load(data, state.now_ms(), fastjson.loads_unlimited)

        try:
            state.store.read_config(FILTERS_FILE, parse)
        except DamagedStoreError as error:
            _log.plain.error("%s The next heartbeats of the consumers restore the filters.", error)
        state.core.files.mark_saved(FILTERS_FILE, self._filters_now())


class _LocksFile(msgspec.Struct):
    locks: list[bodies.LockBatch]


def parse_locks(data: bytes) -> list[bodies.LockBatch]:
    """Read the content of `LOCKS_FILE`.

    Raises:
        DamagedStoreError: it is invalid.
    """
    try:
        if data.startswith(b"["):  # by an older version: it had no place for a checksum
            return decoder(list[bodies.LockBatch]).decode(data)
        return decoder(_LocksFile).decode(data).locks
    except msgspec.MsgspecError as error:
        raise DamagedStoreError(f"{LOCKS_FILE} cannot be read: {error}.") from error


def _check_selectors(data: bodies.HeartbeatData) -> None:
    """Refuse selectors that would take too long to compile in one iteration of the event loop."""
    sizes = [
        len(one.sub_string)
        for consumer in data.consumer_data_set
        for one in consumer.subscription_data_set
        if not _is_tag(one.expression_type)
    ]
    most = limits.SELECTORS_PER_HEARTBEAT_CHARS
    if len(sizes) > 1 and sum(sizes) > most:
        remark = f"the selectors of this heartbeat have {sum(sizes)} characters; {most} are allowed"
        raise Refusal(ResponseCode.SYSTEM_ERROR, remark)


def _checked_name(name: str, kind: str) -> str:
    if not name:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"java.lang.NullPointerException: no {kind}")
    if not is_name(name):
        remark = (
            f"a {kind} has at most {limits.NAME_CHARS_MAX} characters, and no control characters"
        )
        raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
    return name


def _is_tag(kind: str) -> bool:
    return kind in ("", TAG)


def _subscription(body: bodies.SubscriptionData, now_ms: int) -> GroupSubscription:
    """Convert a subscription; without a version it is as new as the heartbeat (section 3.3)."""
    return GroupSubscription(
        topic=body.topic,
        expression=body.sub_string,
        version=body.sub_version or now_ms,
        type=TAG if _is_tag(body.expression_type) else body.expression_type,
        tags=tuple(body.tags_set),
        codes=frozenset(body.code_set),
        class_filter=body.class_filter_mode,
    )


def subscription_body(subscription: GroupSubscription) -> bodies.SubscriptionData:
    """Convert a subscription to its wire form."""
    return bodies.SubscriptionData(
        topic=subscription.topic,
        sub_string=subscription.expression,
        tags_set=list(subscription.tags),
        code_set=sorted(subscription.codes),
        sub_version=subscription.version,
        expression_type=subscription.type,
        class_filter_mode=subscription.class_filter,
    )


def _connection(client: ClientInfo[Channel]) -> bodies.Connection:
    return bodies.Connection(
        client_id=client.client_id,
        client_addr=client.channel.peer,
        language=client.language,
        version=client.version,
    )
