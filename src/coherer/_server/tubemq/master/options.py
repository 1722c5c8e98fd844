"""What a TubeMQ master can be told. Every period is in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from coherer._common.masking import masked
from coherer.errors import UsageError


class MasterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a `Master`.

    Args:
        host: where it can be reached; only named in texts.
        port: the same.
        standby: whether it begins as a standby that refuses all business; see `Master.standby`.
        active_admin_url: where a standby sends users of its HTTP administration.
        auto_create_topics: whether a topic that a producer or consumer names for the first time
            is created on all brokers that are online. Readers and other consumers that choose
            their partitions themselves create none.
        default_partitions: how many partitions it gets on each.
        auto_add_brokers: whether a broker that is not in the catalog may register; it is added,
            online, and one that returns with another address gets its record changed. Without, it
            is refused until an administrator has added it, as Java's master does.
        max_message_bytes: the cluster's limit for a message; None leaves what is in the catalog.
        producer_timeout_ms: a producer that is silent for so long is forgotten.
        consumer_timeout_ms: a consumer that is silent for so long loses its partitions.
        broker_timeout_ms: a broker that is silent for so long is taken out of all lists.
        balance_period_ms: how long after a failed move of a partition the next attempt is made.
            Changes of members and topics are acted on at once.
        consumer_heartbeat_ms: how often our own consumers are asked to report. What they are to
            do travels in answers to heartbeats, so this bounds how long balance takes.
        event_resend_ms: an instruction that was not acknowledged for so long is sent again.
        event_expiry_ms: an instruction that was not acknowledged for so long is forgotten.
        return_ms: after a restart, how long groups wait for the consumers that were there before.
        absent_ms: after a restart, how long groups wait for our own consumers. They report every
            `consumer_heartbeat_ms`, so that those that live are back sooner; Java's report every
            13 s.
        broker_return_ms: how long groups wait for a broker that went away.
        subscribe_delay_ms: between a broker's word that it has a topic and telling consumers.
        publish_delay_ms: between telling consumers and telling producers.
        meta_update_ms: how often consumers that balance themselves get the list of partitions.
        group_broker_rate_max: brokers per consumer that a group may have at most.
        start_offset_check: whether a bound group needs a record in the catalog.
        stopped_brokers_max: how many brokers are stopped at a time after errors of their disks.
        users: passwords by name, for the three following; None for no users. It is read anew at
            each request, so that it may change.
        authenticate_producers: whether producers must sign with the password of a user.
        authenticate_consumers: whether consumers must.
        authenticate_brokers: whether brokers must sign as `broker_user`, or as one of `users`.
        broker_user: the name that brokers use.
        broker_password: its password.
        signature_age_ms: how old a signature may be.
        token_life_ms: how long a client may show the token instead of signing again.
        visit_token_check: whether brokers refuse clients that did not come through a master.
        visit_token_ms: how long such a token is valid.
        admin_token: what changes over HTTP must give as `confModAuthToken`.
        web_port: where the master's HTTP administration is, told to clients; 0 for nowhere.

    Raises:
        UsageError: a value makes no sense.
    """

    host: str = "127.0.0.1"
    port: int = 8715
    standby: bool = False
    active_admin_url: str | None = None
    auto_create_topics: bool = False
    default_partitions: int = 8
    auto_add_brokers: bool = True
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
                least = int(name.endswith("_timeout_ms"))  # 0 would forget everybody at once
                if value < least:
                    raise UsageError(f"`{name}` is {value}; it is {least} or more.")
        if (self.authenticate_producers or self.authenticate_consumers) and self.users is None:
            raise UsageError("Authentication needs users.", hint="Name them in `users`.")
        if bool(self.broker_user) != bool(self.broker_password):
            raise UsageError("`broker_user` and `broker_password` go together.")
        if self.authenticate_brokers and not (self.broker_user or self.users is not None):
            raise UsageError("Authentication of brokers needs `broker_user` and `broker_password`.")

    @property
    def checks_visit_tokens(self) -> bool:
        """Whether brokers check visit tokens."""
        authenticate = self.authenticate_producers or self.authenticate_consumers
        return self.visit_token_check or authenticate

    def __repr__(self) -> str:
        return masked(self, "users", "broker_password", "admin_token")
