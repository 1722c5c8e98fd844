"""The options of a node, and the options of its parts derived from them."""

from __future__ import annotations

import ipaddress
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import msgspec

from coherer import _net as net
from coherer import limits
from coherer._common.masking import masked, masked_url
from coherer._record.schedule import DELAY_LEVELS, parse_levels
from coherer._server.rocketmq.broker.options import MESSAGE_BYTES, RocketOptions, Role
from coherer._server.tubemq.master.options import MasterOptions
from coherer._store import StoreOptions
from coherer._store.retention import check_retention, segment_bytes_for
from coherer.errors import UsageError

SCHEME = "tubemq://"
ROCKETMQ_SCHEME = "rocketmq://"
ROCKETMQ_TLS_SCHEME = "rocketmqs://"
NAMESRV_PORT = 9876
FAST_PORT_STEP = -2
"""From a broker's port to its fast port, which some RocketMQ clients use (section 2.3)."""

Protected: TypeAlias = Literal["tubemq", "rocketmq", "namesrv", "replication", "admin"]
"""The parts of a node that accounts protect."""

JAVA_TOKEN = "abc"  # noqa: S105 - what Java ships

_PORTS = (
    "master_port",
    "master_tls_port",
    "broker_port",
    "broker_tls_port",
    "admin_port",
    "namesrv_port",
    "rocketmq_port",
    "rocketmq_fast_port",
    "ha_port",
)

_MOST = {
    "broker_id": 0x7FFF,
    "default_partitions": limits.TOPIC_PARTITIONS_MAX,
    "heartbeat_ms": 3_600_000,
}
"""Upper limits of options that are positive numbers."""


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a node.

    Args:
        directory: the directory of its files; created if missing.
        roles: `"master"`, `"broker"`, or both.
        host: the address to listen on. By default only this machine can connect.
        advertised_host: the address that clients and brokers use; None for `host`.
        advertised_broker_port: the broker's port that clients use, if it is forwarded (a
            container's published port, a proxy); None for its own.
        master_port: the master's port; 0 for any free one.
        broker_port: the broker's port; 0 for any free one.
        admin_port: the port of the HTTP administration; 0 for any free one, None for none.
        master: the masters of a node that is only a broker: `tubemq://host:port,host:port`.
        broker_id: the broker's id, unique in the cluster.
        flush: `"async"` acknowledges a message when it is written, `"sync"` when it is on disk.
        flush_interval_ms: with `"async"`, the interval of flushes.
        auto_create_topics: whether naming a new topic creates it.
        default_partitions: the number of partitions of such a topic.
        balance_period_ms: after which time a failed move of partitions is retried.
        max_message_bytes: the cluster's message size limit; None leaves it unchanged (1 MiB).
        retention_hours: the minimum time for which messages are kept; None for ever.
        retention_bytes: the maximum size of the log, to within one of its files; None for no limit.
            At least the size of two files.
        transfer_bytes: the maximum number of bytes that one fetch reads.
        hold_ms: how long a fetch without messages waits; None for 5 s, and 0.5 s with remote
            masters (see `BrokerOptions`).
        lease_timeout_ms: when a silent consumer loses its partitions at the broker.
        client_timeout_ms: when the master removes a silent producer or consumer.
        broker_timeout_ms: when the master removes a silent broker.
        heartbeat_ms: how often a broker reports to remote masters.
        segment_bytes: the size of a log file; None for 1 GiB, or an eighth of `retention_bytes`,
            but at least the largest message. An existing log keeps its own.
        tls: certificate and key; opens the TLS ports below, too.
        master_tls_port: the master's port for TLS.
        broker_tls_port: the broker's port for TLS.
        users: accounts: passwords by name. If there are any, or with `rocketmq_access`, all of the
            node needs an account: TubeMQ, RocketMQ, and the HTTP administration. These accounts are
            superusers.
        unprotected: with accounts, the parts that need none: `"tubemq"`, `"rocketmq"`, only its
            name server (`"namesrv"`; Java's brokers do not sign their registrations), only its
            replication (`"replication"`), or queries over HTTP (`"admin"`).
        broker_user: the name with which brokers authenticate at the master; with accounts, it is
            one of them. By default brokers use the first of `users`.
        broker_password: its password.
        visit_token_check: brokers refuse clients without a token from a master; always with
            accounts.
        admin_token: the `confModAuthToken` for changes over HTTP; None for `abc`, which Java ships,
            or with accounts for no token: an account is needed.
        admin_names: additional host names of the HTTP administration.
        advertised_admin_port: its port that clients use, if it is forwarded (a container's
            published port, a proxy); None for its own.
        protocols: the protocols to serve. The options above that name a master or a broker are
            TubeMQ's.
        rocketmq_port: the port of the RocketMQ broker; 0 for any free one, None for no RocketMQ.
        rocketmq_fast_port: its port for all requests except pulls; None for the port two below.
        advertised_rocketmq_port: its port that clients use; None for its own.
        namesrv_port: the port of the RocketMQ name server, beside the master; 0 for any free one,
            None for no name server.
        namesrv: remote name servers: `host:port;host:port`, with `rocketmqs://` in front for TLS.
            The node has no name server of its own then. A node that is only a broker serves
            RocketMQ only if they are given.
        cluster: the name of the RocketMQ cluster.
        broker_name: the RocketMQ broker's name, the same for a master and its slaves.
        role: the RocketMQ broker is a master, a master whose sends wait for a slave, or a slave,
            which follows the master of its name and serves no TubeMQ.
        rocketmq_broker_id: 0 for a master, above that for a slave.
        ha_port: the port where slaves of the RocketMQ broker copy its whole log; None for no
            replication. Java's brokers use the port above their own.
        delay_levels: the delays of the levels of delayed messages.
        transaction_timeout_ms: the age of a half message at its first check.
        transaction_checks_max: the number of checks.
        transaction_interval_ms: the interval of checks.
        trace_topic: whether a topic for RocketMQ's message traces exists from the start.
        rocketmq_access: whether accounts are needed (see `users`), even if `users` is empty: other
            accounts are in `conf/plain_acl.yml` of the directory, in Java's form, with their
            permissions. TubeMQ and the HTTP administration, which have no permissions, accept
            superusers (`admin: true`, no lists). The account with which this broker signs requests
            to other servers, such as a slave's to its master, may be in `conf/tools.yml`.
        unfinished_bytes: the memory for incomplete requests of all clients; at least 32 MiB. Above
            it, connections with large ones are paused, and those without progress are closed.
        tls_required: with `tls`, the RocketMQ ports refuse plain connections; otherwise they detect
            the kind of a connection.
    """

    directory: Path
    roles: frozenset[Literal["master", "broker"]] = frozenset({"master", "broker"})
    host: str = "127.0.0.1"
    advertised_host: str | None = None
    advertised_broker_port: int | None = None
    master_port: int = 8715
    broker_port: int = 8123
    admin_port: int | None = 8080
    master: str | None = None
    broker_id: int = 1
    flush: Literal["async", "sync"] = "async"
    flush_interval_ms: int = 500
    auto_create_topics: bool = True
    default_partitions: int = 8
    balance_period_ms: int = 1_000
    max_message_bytes: int | None = None
    retention_hours: float | None = 72
    retention_bytes: int | None = None
    transfer_bytes: int = 512 * 1024
    hold_ms: int | None = None
    lease_timeout_ms: int = 30_000
    client_timeout_ms: int = 30_000
    broker_timeout_ms: int = 30_000
    heartbeat_ms: int = 1_000
    segment_bytes: int | None = None
    tls: net.TlsOptions | None = None
    master_tls_port: int = 8716
    broker_tls_port: int = 8124
    users: dict[str, str] = {}
    broker_user: str = ""
    broker_password: str = ""
    visit_token_check: bool = False
    admin_token: str | None = None
    admin_names: frozenset[str] = frozenset()
    advertised_admin_port: int | None = None
    unprotected: frozenset[Protected] = frozenset()
    protocols: frozenset[Literal["tubemq", "rocketmq"]] = frozenset({"tubemq", "rocketmq"})
    rocketmq_port: int | None = 10911
    rocketmq_fast_port: int | None = None
    advertised_rocketmq_port: int | None = None
    namesrv_port: int | None = 9876
    namesrv: str | None = None
    cluster: str = "DefaultCluster"
    broker_name: str = "broker-a"
    role: Role = "ASYNC_MASTER"
    rocketmq_broker_id: int = 0
    ha_port: int | None = None
    delay_levels: str = DELAY_LEVELS
    transaction_timeout_ms: int = 6_000
    transaction_checks_max: int = 15
    transaction_interval_ms: int = 60_000
    trace_topic: bool = False
    rocketmq_access: bool = False
    tls_required: bool = False
    unfinished_bytes: int = net.ConnectionLimits().unfinished_bytes

    def __post_init__(self) -> None:
        if not self.roles or not self.roles <= {"master", "broker"}:
            raise UsageError("A node is a master, a broker, or both.")
        if not self.protocols or not self.protocols <= {"tubemq", "rocketmq"}:
            raise UsageError("The protocols of a node are tubemq, rocketmq, or both.")
        if self.has_tubemq and ("master" in self.roles) == (self.master is not None):
            raise UsageError(
                "A node without the role master needs `master`, and only such a node.",
                hint="For example tubemq://10.0.0.1:8715",
            )
        if self.reachable_host in {"0.0.0.0", "::", ""}:  # noqa: S104 - refused
            raise UsageError(
                f"Clients cannot connect to {self.host!r}.",
                hint="Set `advertised_host` to the address of this machine.",
            )
        for name, most in _MOST.items():
            if not 0 < getattr(self, name) <= most:
                raise UsageError(f"`{name}` is {getattr(self, name)}; it must be 1 to {most}.")
        if self.unfinished_bytes < limits.INBOXES_BYTES_MIN:
            raise UsageError(
                f"`unfinished_bytes` is {self.unfinished_bytes}; it must be at least "
                f"{limits.INBOXES_BYTES_MIN} to hold one large request."
            )
        self._check_accounts()
        self._check_rocketmq()
        self._segment_bytes()

    def __repr__(self) -> str:
        return masked(self, "users", "broker_password", "admin_token")

    def _check_accounts(self) -> None:
        if not all(self.users) or not all(self.users.values()):
            raise UsageError("`users` contains an account without a name or password.")
        if bool(self.broker_user) != bool(self.broker_password):
            raise UsageError("`broker_user` and `broker_password` must be set together.")
        known = frozenset(get_args(Protected))
        if not self.unprotected <= known:
            wrong = ", ".join(sorted(self.unprotected - known))
            hint = f"Valid parts are {', '.join(sorted(known))}."
            raise UsageError(f"`unprotected` contains unknown parts: {wrong}.", hint=hint)

    def _check_rocketmq(self) -> None:
        if self.rocketmq_port is not None and 0 < self.rocketmq_port <= -FAST_PORT_STEP:
            raise UsageError(f"`rocketmq_port` is {self.rocketmq_port}; it must be 0 or above 2.")
        if self.is_slave != (self.rocketmq_broker_id > 0):
            raise UsageError("`rocketmq_broker_id` must be above 0 for a slave, 0 for a master.")
        if self.role == "SYNC_MASTER" and self.ha_port is None:
            raise UsageError("A SYNC_MASTER needs slaves, which need `ha_port`.")
        if self.is_slave and not self.name_servers:
            raise UsageError("A slave needs the name servers of its master: `namesrv`.")
        if not self.has_tubemq and self.own_name_server is None and self.rocketmq_broker is None:
            raise UsageError("A node without TubeMQ needs `namesrv` or `namesrv_port`.")

    def port_option(self, port: int) -> str:
        """The name of the option that sets a port; "" if none does.

        >>> NodeOptions(directory=Path("data"), admin_port=9000).port_option(9000)
        'admin_port'
        """
        for name in _PORTS:
            if port and getattr(self, name) == port:
                return name
        return "rocketmq_port" if port and port == self.fast_port else ""

    @property
    def reachable_host(self) -> str:
        """The address that others connect to."""
        return self.advertised_host or self.host

    @property
    def masters(self) -> list[tuple[str, int]]:
        """Host and port of each remote master.

        >>> NodeOptions(
        ...     directory=Path("."), roles=frozenset({"broker"}), master="tubemq://a:1,b"
        ... ).masters
        [('a', 1), ('b', 8715)]
        """
        found: list[tuple[str, int]] = []
        for part in (self.master or "").removeprefix(SCHEME).strip("/").split(","):
            host, _, port = part.strip().partition(":")
            if not host or not (port or "0").isdecimal():
                raise UsageError(f"{masked_url(f'//{part}')[2:]!r} in `master` is not host:port.")
            found.append((host, int(port or 8715)))
        return found

    @property
    def name_servers(self) -> list[str]:
        """The remote name servers as host:port.

        >>> NodeOptions(directory=Path("."), namesrv="10.0.0.1; 10.0.0.2:9877").name_servers
        ['10.0.0.1:9876', '10.0.0.2:9877']
        >>> NodeOptions(directory=Path("."), namesrv="rocketmqs://10.0.0.1").name_servers
        ['10.0.0.1:9876']
        """
        addresses = (self.namesrv or "").removeprefix(ROCKETMQ_SCHEME)
        parts = addresses.removeprefix(ROCKETMQ_TLS_SCHEME).replace(",", ";").split(";")
        named = (part.strip() for part in parts)
        return [part if ":" in part else f"{part}:{NAMESRV_PORT}" for part in named if part]

    @property
    def outgoing_tls(self) -> net.TlsOptions | None:
        """TLS for connections to remote name servers and a slave's master; None for plain ones."""
        if (self.namesrv or "").startswith(ROCKETMQ_TLS_SCHEME):
            return self.tls or net.TlsOptions()
        return None

    @property
    def rocketmq_scheme(self) -> str:
        """The scheme of the node's RocketMQ URL."""
        only_tls = self.tls is not None and self.tls_required
        secure = only_tls if self.namesrv is None else self.outgoing_tls is not None
        return ROCKETMQ_TLS_SCHEME if secure else ROCKETMQ_SCHEME

    @property
    def has_tubemq(self) -> bool:
        """Whether the node serves TubeMQ; a slave does not."""
        return "tubemq" in self.protocols and not self.is_slave

    @property
    def own_master(self) -> bool:
        """Whether the node has a TubeMQ master."""
        return self.has_tubemq and "master" in self.roles

    @property
    def own_name_server(self) -> int | None:
        """The port of the node's name server; None without one."""
        here = "rocketmq" in self.protocols and "master" in self.roles and not self.name_servers
        return self.namesrv_port if here else None

    @property
    def rocketmq_broker(self) -> int | None:
        """The port of the node's RocketMQ broker; None without one."""
        findable = self.own_name_server is not None or self.name_servers
        here = "rocketmq" in self.protocols and "broker" in self.roles and findable
        return self.rocketmq_port if here else None

    @property
    def is_slave(self) -> bool:
        """Whether the RocketMQ broker follows a master."""
        return self.role == "SLAVE"

    @property
    def fast_port(self) -> int:
        """The RocketMQ broker's port for all requests except pulls; 0 for any free one."""
        if self.rocketmq_fast_port is not None or not self.rocketmq_port:
            return self.rocketmq_fast_port or 0
        return self.rocketmq_port + FAST_PORT_STEP

    @property
    def has_accounts(self) -> bool:
        """Whether all parts that are not `unprotected` need an account."""
        return bool(self.users) or self.rocketmq_access

    def protects(self, part: Protected) -> bool:
        """Whether a part of the node needs an account."""
        if part in {"namesrv", "replication"} and "rocketmq" in self.unprotected:
            return False
        return self.has_accounts and part not in self.unprotected

    @property
    def accounts(self) -> dict[str, str]:
        """The accounts in the options: passwords by name."""
        own = {self.broker_user: self.broker_password} if self.broker_user else {}
        return {**self.users, **own}

    @property
    def account(self) -> tuple[str, str] | None:
        """Name and password with which this node's brokers sign; None without accounts."""
        if self.broker_user:
            return self.broker_user, self.broker_password
        return next(iter(self.users.items()), None)

    @property
    def http_token(self) -> str | None:
        """The `confModAuthToken` for changes over HTTP; None if an account is needed."""
        if self.admin_token is None and not self.has_accounts:
            return JAVA_TOKEN
        return self.admin_token

    @property
    def names(self) -> frozenset[str]:
        """The host names of this node."""
        own = {"localhost", self.host, self.reachable_host, platform.node()}
        return self.admin_names | {name for name in own if name}

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect to the node."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def warnings(self) -> list[str]:
        """What anyone who can connect may do, and how to prevent it.

        >>> NodeOptions(directory=Path(".")).warnings
        []
        >>> found = NodeOptions(
        ...     directory=Path("."), users={"a": "b"}, unprotected=frozenset({"tubemq"})
        ... ).warnings
        >>> found[0][:59]
        'TubeMQ is served without accounts: anyone who can connect t'
        """
        if not self.has_accounts:
            text = (
                f"{self.host} is open to the network without accounts: anyone who can connect can "
                "read and write everything. Set `users`, or listen on 127.0.0.1."
            )
            return [] if self.is_local else [text]
        parts: dict[Protected, tuple[str, bool]] = {
            "tubemq": ("TubeMQ is served", self.has_tubemq),
            "rocketmq": ("RocketMQ is served", self.rocketmq_broker is not None),
            "namesrv": ("The name server accepts changes", self.own_name_server is not None),
            "replication": ("The log is replicated", self._replicates),
            "admin": (
                "Queries over HTTP are answered", self.admin_port is not None and self.has_tubemq
            ),
        }  # fmt: skip
        found = [
            f"{what} without accounts: anyone who can connect to {self.host} can use it. "
            f"Remove `{part}` from `unprotected`."
            for part, (what, here) in parts.items()
            if here and not self.protects(part)
        ]
        if self._replicates and self.protects("replication"):
            found.append(
                f"The replication protocol has no accounts: port {self.ha_port} serves the whole "
                "log to trusted addresses, and to addresses from which a superuser has signed a "
                "request."
            )
        if self.admin_token == JAVA_TOKEN:
            found.append("`admin_token` is the well-known abc. Use another one, or none.")
        return found

    @property
    def _replicates(self) -> bool:
        return self.ha_port is not None and self.rocketmq_broker is not None and not self.is_slave

    @property
    def hold_timeout_ms(self) -> int:
        """How long a fetch without messages waits."""
        if self.hold_ms is not None:
            return self.hold_ms
        return 5_000 if self.master is None else 500

    def _segment_bytes(self) -> int:
        if self.segment_bytes is None:
            default = MESSAGE_BYTES if self.rocketmq_broker is not None else 0
            largest = self.max_message_bytes or max(limits.MESSAGE_BYTES_DEFAULT, default)
            return segment_bytes_for(self.retention_bytes, largest)
        check_retention(self.retention_bytes, self.segment_bytes)
        return self.segment_bytes

    def store_options(self) -> StoreOptions:
        """The options of the store."""
        return StoreOptions(
            segment_bytes=self._segment_bytes(),
            flush=self.flush,
            flush_interval_ms=self.flush_interval_ms,
            retention_hours=self.retention_hours,
            retention_bytes=self.retention_bytes,
            replica=self.is_slave,
            delay_levels_ms=parse_levels(self.delay_levels),
        )

    def rocket_options(self, port: int, ha_port: int) -> RocketOptions:
        """The options of the RocketMQ broker.

        Args:
            port: its port.
            ha_port: its replication port; 0 without.
        """
        return RocketOptions(
            cluster=self.cluster,
            broker=self.broker_name,
            host=self.reachable_host,
            port=self.advertised_rocketmq_port or port,
            ha_port=ha_port,
            auto_create_topics=self.auto_create_topics,
            default_queues=self.default_partitions,
            message_bytes_max=self.max_message_bytes or MESSAGE_BYTES,
            role=self.role,
            broker_id=self.rocketmq_broker_id,
            trace_topic=self.trace_topic,
            transaction_timeout_ms=self.transaction_timeout_ms,
            transaction_checks_max=self.transaction_checks_max,
            transaction_interval_ms=self.transaction_interval_ms,
        )

    def master_options(
        self, passwords: Mapping[str, str] | None = None, web_port: int = 0
    ) -> MasterOptions:
        """The options of the master.

        Args:
            passwords: of the superusers, by name; None without accounts.
            web_port: the port of its HTTP administration; 0 for none.
        """
        authenticate = self.protects("tubemq")
        return MasterOptions(
            host=self.reachable_host,
            port=self.master_port,
            auto_create_topics=self.auto_create_topics,
            default_partitions=self.default_partitions,
            max_message_bytes=self.max_message_bytes,
            producer_timeout_ms=self.client_timeout_ms,
            consumer_timeout_ms=self.client_timeout_ms,
            broker_timeout_ms=self.broker_timeout_ms,
            balance_period_ms=self.balance_period_ms,
            users=passwords if self.has_accounts else None,
            authenticate_producers=authenticate,
            authenticate_consumers=authenticate,
            authenticate_brokers=authenticate or bool(self.broker_user),
            broker_user=self.broker_user,
            broker_password=self.broker_password,
            visit_token_check=self.visit_token_check,
            web_port=web_port,
        )
