"""The heartbeat path of a broker: who is there, and what others are told (2.10, 2.12, 3.6-3.12).

A heartbeat makes what its groups lack, their settings and `%RETRY%` topics, books its clients, and
keeps their expressions. Members of a group are told of changes on the connections over which they
came, that of the newcomer included, before its heartbeat is answered. So is a member whose lock on
a queue was refused, when the queue is free.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from coherer import limits
from coherer._common.clock import IntervalTimer
from coherer._common.logs import Log
from coherer._rules.common.topics import RETRY_PREFIX, UNIT_SUB
from coherer._rules.rocketmq.clients import (
    TAG,
    Changed,
    ClientInfo,
    Event,
    GroupSettings,
    Registered,
    Subscription,
    Unregistered,
)
from coherer._server.rocketmq.broker.expressions import expression_fault
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.refusal import Refusal
from coherer._server.rocketmq.remoting import Channel, Handler
from coherer._wire.rocketmq import bodies, fastjson
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import GroupHeader, ProducerGroupHeader, TopicHeader, parse
from coherer._wire.rocketmq.names import FEATURE_TIMERS, FEATURES
from coherer.errors import DamagedStoreError

_log = Log(logging.getLogger(__name__))

FILTERS_FILE: Final = "consumerFilter.json"
HOUSEKEEPING_MS: Final = 10_000
"""How often clients are looked for that are gone, and filters saved (3.9, 3.11)."""
LOCK_CHECK_MS: Final = 1_000
"""How often locks are looked for that are over."""


class ClientDesk:
    """Answers heartbeats, good-byes, locks, and questions about who is there.

    Args:
        state: what the broker's parts share.
    """

    def __init__(self, state: RocketState) -> None:
        self._state = state
        self._housekeeping = IntervalTimer(HOUSEKEEPING_MS, state.now_ms())
        self._lock_check = IntervalTimer(LOCK_CHECK_MS, state.now_ms())
        self._saved_filters = b""
        self._load_filters()

    def handlers(self) -> dict[int, Handler]:
        """What is answered here, by request code."""
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_ids,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_client,
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
        }

    # -- who is there

    def heartbeat(self, channel: Channel, request: Command) -> Command:
        """Code 34.

        Raises:
            ProtocolError: it is no heartbeat.
            Refusal: the client has no name, or one of its groups has none; the groups before that
                are booked.
        """
        data = bodies.HeartbeatData.decode(request.body)
        if not data.client_id:
            remark = "java.lang.NullPointerException: no client's id"
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
        _check_selectors(data)
        for consumer in data.consumer_data_set:
            self._register_consumer(consumer, self._client(channel, request, data.client_id))
        for producer in data.producer_data_set:
            group = _named(producer.group_name)
            self._state.producers.register(group, self._client(channel, request, data.client_id))
        told = {FEATURES: FEATURE_TIMERS} if FEATURES in request.fields else {}
        return Command(ResponseCode.SUCCESS, fields=told)

    def unregister(self, channel: Channel, request: Command) -> Command:
        """Code 35: always a success."""
        producer_group = request.fields.get("producerGroup")
        if producer_group is not None:
            self._state.producers.unregister(producer_group, channel)
        group = request.fields.get("consumerGroup")
        if group is not None:
            settings = self._state.groups.get(group)
            notify = settings is None or settings.notify_consumer_ids_changed_enable
            self._carry_out(self._state.consumers.unregister(group, channel, notify=notify))
        return Command(ResponseCode.SUCCESS)

    def closed(self, channel: Channel) -> None:
        """A connection is gone, and the clients at its end."""
        self._state.producers.close(channel)
        self._carry_out(self._state.consumers.close(channel))

    def _client(self, channel: Channel, request: Command, client_id: str) -> ClientInfo[Channel]:
        now_ms = self._state.now_ms()
        return ClientInfo(channel, client_id, request.language, request.version, now_ms)

    def _register_consumer(self, data: bodies.ConsumerData, client: ClientInfo[Channel]) -> None:
        state = self._state
        group = _named(data.group_name)
        settings = state.group(group)
        notify = True
        if settings is not None:
            notify = settings.notify_consumer_ids_changed_enable
            state.topics.create_for_return(
                f"{RETRY_PREFIX}{group}",
                settings.retry_queue_nums,
                state.now_ms(),
                sys_flag=UNIT_SUB if data.unit_mode else 0,
            )
        said = GroupSettings(data.consume_type, data.message_model, data.consume_from_where)
        wanted = [_subscription(one, client.updated_ms) for one in data.subscription_data_set]
        _, events = state.consumers.register(group, client, said, wanted, notify=notify)
        self._carry_out(events)

    def _carry_out(self, events: Iterable[Event[Channel]]) -> None:
        """Do what the rules say, in their order (3.8)."""
        for event in events:
            if isinstance(event, Changed):
                self._tell(event.group, event.channels)
            elif isinstance(event, Registered):
                self._state.filters.register(event.group, event.subscriptions, self._state.now_ms())
            else:
                self._forget(event)

    def _forget(self, event: Unregistered) -> None:
        self._state.filters.unregister(event.group, self._state.now_ms())

    def _tell(self, group: str, channels: Iterable[Channel]) -> None:
        """Code 40 to every member (4.2) that listens: the others rebalance by themselves."""
        if not self._state.options.notify_members:
            return
        fields = {"consumerGroup": group}
        for channel in channels:
            if channel.connection.unsent_bytes < limits.OUTBOX_HIGH_BYTES:
                channel.notify(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields)

    # -- questions

    def consumer_ids(self, _: Channel, request: Command) -> Command:
        """Code 38: the members of a group.

        Raises:
            Refusal: it has none.
        """
        group = parse(GroupHeader, request.fields).consumer_group
        found = self._state.consumers.get(group)
        if found is None:
            remark = f"no consumer for this group, {group}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
        body = bodies.ConsumerIds(consumer_id_list=found.client_ids)
        return Command(ResponseCode.SUCCESS, body=body.encode())

    def check_client(self, _: Channel, request: Command) -> Command:
        """Code 46: whether the broker can filter like this.

        Raises:
            ProtocolError: the body is none.
            Refusal: it cannot.
        """
        told = bodies.CheckClient.find(request.body)
        wanted = None if told is None else told.subscription_data
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
        """Code 203: the members of a group, and what it wants.

        Raises:
            Refusal: it has none.
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
        return Command(ResponseCode.SUCCESS, body=body.encode())

    def producer_connections(self, _: Channel, request: Command) -> Command:
        """Code 204: the producers of a group.

        Raises:
            Refusal: there is no such group.
        """
        name = parse(ProducerGroupHeader, request.fields).producer_group
        members = self._state.producers.members(name)
        if members is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        body = bodies.ProducerConnection(connection_set=[_connection(one) for one in members])
        return Command(ResponseCode.SUCCESS, body=body.encode())

    def groups_of_topic(self, _: Channel, request: Command) -> Command:
        """Code 300: the groups that subscribe to a topic, or have read of it."""
        topic = parse(TopicHeader, request.fields).topic
        online = self._state.consumers.groups_of(topic)
        groups = dict.fromkeys([*online, *self._state.offsets.groups_of(topic)])
        return Command(ResponseCode.SUCCESS, body=bodies.GroupList(group_list=[*groups]).encode())

    # -- locks

    def lock(self, _: Channel, request: Command) -> Command:
        """Code 41: take or renew locks on queues.

        Raises:
            ProtocolError: the body is none.
        """
        wanted = bodies.LockBatch.decode(request.body)
        granted = self._state.locks.lock(
            wanted.consumer_group, wanted.client_id, wanted.queues, self._state.now_ms()
        )
        return Command(ResponseCode.SUCCESS, body=bodies.LockedBatch(queues=granted).encode())

    def unlock(self, _: Channel, request: Command) -> Command:
        """Code 42: give locks back.

        Raises:
            ProtocolError: the body is none.
        """
        wanted = bodies.LockBatch.decode(request.body)
        group = wanted.consumer_group
        refused = self._state.locks.unlock(group, wanted.client_id, wanted.queues)
        self._tell_refused(group, refused)
        return Command(ResponseCode.SUCCESS)

    def _tell_refused(self, group: str, refused: Iterable[str]) -> None:
        """Have consumers rebalance that were refused a lock which is free now.

        Java's broker does not: whoever asked before the lock was given back asks again at its next
        rebalance, up to 20 s later.
        """
        settings = self._state.groups.get(group)
        if settings is not None and not settings.notify_consumer_ids_changed_enable:
            return
        members = (self._state.consumers.find(group, client_id) for client_id in refused)
        self._tell(group, [member.channel for member in members if member is not None])

    # -- on a beat

    def tick(self) -> None:
        """Drop who was not heard of; call it every second or so."""
        now_ms = self._state.now_ms()
        if self._lock_check.is_due(now_ms):
            for group, refused in self._state.locks.forget_expired(now_ms).items():
                self._tell_refused(group, refused)
        if not self._housekeeping.is_due(now_ms):
            return
        gone = [*self._state.producers.expire(now_ms), *self._state.consumers.expire(now_ms)]
        for channel in dict.fromkeys(gone):
            channel.close()

    def save_filters(self) -> None:
        """Have the filters written, if they are new."""
        self._state.core.files.save(FILTERS_FILE, self._filters_now)

    def _filters_now(self) -> bytes:
        return self._state.filters.dump(self._state.now_ms())

    def _load_filters(self) -> None:
        state = self._state

        def parse(data: bytes) -> None:
            state.filters.load(data, state.now_ms(), fastjson.load_whole)

        try:
            state.store.read_config(FILTERS_FILE, parse)
        except DamagedStoreError as error:
            _log.plain.error("%s The next heartbeats of consumers bring everything again.", error)
        state.core.files.has(FILTERS_FILE, self._filters_now())


def _check_selectors(data: bodies.HeartbeatData) -> None:
    """Refuse more selectors than can be compiled between the requests of others."""
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


def _named(group: str) -> str:
    if not group:
        raise Refusal(ResponseCode.SYSTEM_ERROR, "java.lang.NullPointerException: no group's name")
    return group


def _is_tag(kind: str) -> bool:
    return kind in ("", TAG)


def _subscription(body: bodies.SubscriptionData, now_ms: int) -> Subscription:
    """What a heartbeat says; one without a version is as new as the heartbeat (3.3)."""
    return Subscription(
        topic=body.topic,
        expression=body.sub_string,
        version=body.sub_version or now_ms,
        type=TAG if _is_tag(body.expression_type) else body.expression_type,
        tags=tuple(body.tags_set),
        codes=frozenset(body.code_set),
        class_filter=body.class_filter_mode,
    )


def subscription_body(subscription: Subscription) -> bodies.SubscriptionData:
    """A subscription as bodies carry it."""
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
