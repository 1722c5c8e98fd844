"""The options of a TubeMQ master and of a broker. All periods are in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from coherer._common.masking import masked
from coherer.errors import UsageError


class MasterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a `Master`.

    Args:
        host: the host of the master, used in messages only.
        port: the port of the master, used in messages only.
        standby: whether it starts as a standby that refuses all requests; see `Master.standby`.
        active_admin_url: where a standby redirects users of its HTTP administration.
        auto_create_topics: whether a topic that a producer or consumer names for the first time
            is created on all online brokers. Client-balanced consumers and readers do not create
            topics.
        default_partitions: the number of partitions per broker of such topics.
        auto_add_brokers: whether a broker that is not in the catalog may register. It is added as
            online; if it returns with another address, its record is changed. Otherwise, as in
            Java, it is refused until an administrator has added it.
        siblings: the ids of brokers that run together; such topics are also created on siblings
            that are offline.
        max_message_bytes: the cluster's limit for a message; None keeps the limit in the catalog.
        producer_timeout_ms: a producer that is silent for this long is removed.
        consumer_timeout_ms: a consumer that is silent for this long loses its partitions.
        broker_timeout_ms: a broker that is silent for this long is removed from all lists.
        balance_period_ms: the time between a failed move of a partition and the next attempt.
            Changes of members and topics take effect at once.
        consumer_heartbeat_ms: how often Coherer's own consumers are asked to report. Assignments
            travel in answers to heartbeats, so this bounds the duration of a rebalance.
        event_resend_ms: an event that is not acknowledged for this long is sent again.
        event_expiry_ms: an event that is not acknowledged for this long is dropped.
        return_ms: after a restart, how long groups wait for their earlier members.
        absent_ms: after a restart, how long groups wait for Coherer's own consumers. These report
            every `consumer_heartbeat_ms` and are thus back sooner; Java's report every 13 s.
        broker_return_ms: how long groups wait for a broker that has left; and after a restart, how
            long producers keep what they know about brokers that have not registered yet.
        subscribe_delay_ms: from a broker's report of a topic until consumers may use it.
        publish_delay_ms: from opening a topic to consumers until producers may use it.
        meta_update_ms: how often client-balanced consumers get the list of partitions.
        group_broker_rate_max: the maximum number of brokers per consumer of a group.
        start_offset_check: whether a bound group needs a record in the catalog.
        stopped_brokers_max: how many brokers can be stopped at a time after disk errors.
        users: passwords by user name, for the following three options; None without users. The
            mapping is read at each request, so it may change.
        authenticate_producers: whether producers must sign with the password of a user.
        authenticate_consumers: whether consumers must.
        authenticate_brokers: whether brokers must sign as `broker_user`, or as one of `users`.
        broker_user: the user name of brokers.
        signature_age_ms: the maximum age of a signature.
        token_life_ms: how long a client may send its token instead of a signature.
        visit_token_check: whether brokers refuse clients that have not registered at a master.
        visit_token_ms: how long a visit token is valid.
        admin_token: the value of `confModAuthToken` that changes over HTTP need.
        web_port: the port of the master's HTTP administration, sent to clients; 0 without one.

    Raises:
        UsageError: a value is not valid.
    """

    host: str = "127.0.0.1"
    port: int = 8715
    standby: bool = False
    active_admin_url: str | None = None
    auto_create_topics: bool = False
    default_partitions: int = 8
    auto_add_brokers: bool = True
    siblings: frozenset[int] = frozenset()
    max_message_bytes: int | None = None
    producer_timeout_ms: int = 30_000
    consumer_timeout_ms: int = 30_000
    broker_timeout_ms: int = 30_000
    balance_period_ms: int = 1_000
    consumer_heartbeat_ms: int = 500
    event_resend_ms: int = 30_000
    event_expiry_ms: int = 120_000
    return_ms: int = 15_000
    absent_ms: int = 2_000
    broker_return_ms: int = 30_000
    subscribe_delay_ms: int = 0
    publish_delay_ms: int = 0
    meta_update_ms: int = 180_000
    group_broker_rate_max: int = 1_000
    start_offset_check: bool = False
    stopped_brokers_max: int = 5
    users: Mapping[str, str] | None = None
    authenticate_producers: bool = False
    authenticate_consumers: bool = False
    authenticate_brokers: bool = False
    broker_user: str = ""
    broker_password: str = ""
    signature_age_ms: int = 20_000
    token_life_ms: int = 3_600_000
    visit_token_check: bool = False
    visit_token_ms: int = 300_000
    admin_token: str = "abc"  # noqa: S105 - the value that Java ships
    web_port: int = 0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value: object = getattr(self, name)
            if name.endswith("_ms") and isinstance(value, int):
                least = int(name.endswith("_timeout_ms"))  # 0 would remove every client at once
                if value < least:
                    raise UsageError(f"`{name}` is {value}; it must be {least} or more.")
        if (self.authenticate_producers or self.authenticate_consumers) and self.users is None:
            raise UsageError("Authentication needs users.", hint="Set `users`.")
        if bool(self.broker_user) != bool(self.broker_password):
            raise UsageError("`broker_user` and `broker_password` must be set together.")
        if self.authenticate_brokers and not (self.broker_user or self.users is not None):
            raise UsageError("Authentication of brokers needs `broker_user` and `broker_password`.")

    @property
    def checks_visit_tokens(self) -> bool:
        """Whether brokers check visit tokens."""
        authenticate = self.authenticate_producers or self.authenticate_consumers
        return self.visit_token_check or authenticate

    def __repr__(self) -> str:
        return masked(self, "users", "broker_password", "admin_token")


class BrokerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a `Broker`.

    Args:
        broker_id: the id of the broker in the cluster, above zero.
        host: the address under which clients and the master reach the broker.
        port: the port under which they reach it.
        tls_port: the port for TLS, announced to the master; None without TLS.
        web_port: the port of the HTTP administration, for Coherer's masters; 0 without one.
        lease_timeout_ms: a consumer that is silent for this long loses its partitions.
        hold_ms: the maximum time that a get without messages waits for one. Choose less for
            consumers with few fetching threads (Java's push consumer) and several brokers: while a
            thread waits at one broker, it misses messages at the others.
        transfer_bytes: the maximum bytes of records that one get reads; it reads at least one
            message.
        token_grace_ms: how long after registration unknown visit tokens are accepted.

    Raises:
        UsageError: a number is not valid.
    """

    broker_id: int = 1
    host: str = "127.0.0.1"
    port: int = 8123
    tls_port: int | None = None
    web_port: int = 0
    lease_timeout_ms: int = 30_000
    hold_ms: int = 5_000
    transfer_bytes: int = 512 * 1024
    token_grace_ms: int = 120_000

    def __post_init__(self) -> None:
        for name, least in (("lease_timeout_ms", 1), ("hold_ms", 0), ("transfer_bytes", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"`{name}` is {getattr(self, name)}; it must be {least} or more.")
