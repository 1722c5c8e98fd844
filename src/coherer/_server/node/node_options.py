"""How a node is set up, and what that means for its parts."""

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
from coherer._record.system_topics import DELAY_LEVELS, parse_levels
from coherer._server.rocketmq.broker.options import MESSAGE_BYTES, RocketOptions, Role
from coherer._server.tubemq.master.options import MasterOptions
from coherer._store import StoreOptions
from coherer._store.model import check_retention, segment_bytes_for
from coherer.errors import UsageError

SCHEME = "tubemq://"
ROCKETMQ_SCHEME = "rocketmq://"
ROCKETMQ_TLS_SCHEME = "rocketmqs://"
NAMESRV_PORT = 9876
FAST_PORT_STEP = -2
"""Where a RocketMQ client that is in a hurry looks for a broker, seen from its port (2.3)."""

Protected: TypeAlias = Literal["tubemq", "rocketmq", "namesrv", "replication", "admin"]
"""What accounts protect."""

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
"""Options that are numbers above 0, and how large they may be."""


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a node is set up.

    Args:
        directory: where its files are; made if missing.
        roles: `"master"`, `"broker"`, or both.
        host: the address to listen on. Only this machine can reach the default.
        advertised_host: the address that clients and brokers are told; None for `host`.
        advertised_broker_port: the port of the broker that clients are told, where something
            stands in between (a container's published port, a proxy); None for its own.
        master_port: the master's port; 0 for any free one.
        broker_port: the broker's port; 0 for any free one.
        admin_port: the port of the HTTP administration; 0 for any free one, None for none.
        master: the masters of a node that is only a broker: `tubemq://host:port,host:port`.
        broker_id: the broker's number, which no other broker of the cluster has.
        flush: `"async"` acknowledges what is written, `"sync"` what is on the disk.
        flush_interval_ms: with `"async"`, how long what is written may wait for the disk.
        auto_create_topics: whether topics come into being when they are first named.
        default_partitions: how many partitions such a topic has.
        balance_period_ms: how soon a move of partitions that failed is tried again.
        max_message_bytes: the cluster's limit for a message; None leaves it as it is (1 MiB).
        retention_hours: how long messages are kept at least; None for ever.
        retention_bytes: how large the log may become, to within one of its files; None for no
            limit. There must be room for two files.
        transfer_bytes: how much one get reads.
        hold_ms: how long a get that finds nothing waits; None for 5 s, and 0.5 s with remote
            masters (see `BrokerOptions`).
        lease_timeout_ms: when a silent consumer loses its partitions at the broker.
        client_timeout_ms: when the master forgets a silent producer or consumer.
        broker_timeout_ms: when the master takes out a silent broker.
        heartbeat_ms: how often a broker reports to remote masters.
        segment_bytes: size of a file of the log; None for 1 GiB, or for an eighth of
            `retention_bytes`, but room for the largest message. A log that is there keeps its own.
        tls: certificate and key; then the ports below are open too.
        master_tls_port: the master's port for TLS.
        broker_tls_port: the broker's port for TLS.
        users: accounts: passwords by name. With any, or with `rocketmq_access`, everything is
            served to accounts only: TubeMQ, RocketMQ, and the administration over HTTP. These
            accounts may do everything.
        unprotected: with accounts, what is served without one nevertheless: `"tubemq"`,
            `"rocketmq"`, only its name server (`"namesrv"`, where Java's brokers register, which
            do not sign), only its replication (`"replication"`), or queries over HTTP (`"admin"`).
        broker_user: name that brokers authenticate with at the master, where it is set; with
            accounts, it is one. None of it given, brokers use the first of `users`.
        broker_password: the password for it.
        visit_token_check: brokers refuse clients that did not come through a master; always with
            accounts.
        admin_token: what changes over HTTP may give as `confModAuthToken`; None for `abc`, which
            Java ships, and with accounts for no token: an account is needed.
        admin_names: host names, beside its own, by which browsers and tools may call the
            administration over HTTP.
        advertised_admin_port: the port of it that clients use, where something stands in between
            (a container's published port, a proxy); None for its own.
        doors: which protocols are spoken. The options above that name a master or a broker are
            TubeMQ's.
        rocketmq_port: the port of the RocketMQ broker; 0 for any free ones, None for no such door.
        rocketmq_fast_port: where it serves everything but pulls; None for the port two below.
        advertised_rocketmq_port: the port of it that clients are told; None for its own.
        namesrv_port: the port of the RocketMQ name server, beside the master; 0 for any free one,
            None for none.
        namesrv: name servers elsewhere: `host:port;host:port`, with `rocketmqs://` in front where
            they want TLS. Then there is none here. A node that is only a broker has a RocketMQ door
            if they are given.
        cluster: the name of the RocketMQ cluster.
        broker_name: the RocketMQ broker's name, the same for a master and its slaves.
        role: the RocketMQ broker is a master, one whose sends wait for a slave, or a slave, which
            follows the master of its name and has no other door.
        rocketmq_broker_id: 0 for a master, above that for a slave.
        ha_port: where slaves of the RocketMQ broker fetch its log, all of it; None for nowhere.
            Java's brokers have it at the port above their own.
        delay_levels: how long the levels of delayed messages wait.
        transaction_timeout_ms: how old a half message is when its producer is asked first.
        transaction_checks_max: how often it is asked.
        transaction_interval_ms: from one round of questions to the next.
        trace_topic: whether there is a topic for RocketMQ's message traces from the start.
        rocketmq_access: whether accounts only are served (see `users`), though `users` may name
            none: others stand in `conf/plain_acl.yml` of the directory, in Java's form, with what
            each may do. TubeMQ and the administration, which know no permissions, take those that
            may do everything (`admin: true`, no lists). The account by which this broker itself
            asks others, a slave its master, may stand in `conf/tools.yml`.
        unfinished_bytes: how much is kept of requests that are not whole yet, of all clients
            together; at least 32 MiB. Beyond that the large ones wait, and those that do not go on
            are closed.
        tls_required: with `tls`, the RocketMQ ports refuse plain connections; else they tell one
            kind from the other by itself.
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
    doors: frozenset[Literal["tubemq", "rocketmq"]] = frozenset({"tubemq", "rocketmq"})
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
    unfinished_bytes: int = limits.INBOXES_BYTES

    def __post_init__(self) -> None:
        if not self.roles or not self.roles <= {"master", "broker"}:
            raise UsageError("A node is a master, a broker, or both.")
        if not self.doors or not self.doors <= {"tubemq", "rocketmq"}:
            raise UsageError("The doors of a node are tubemq, rocketmq, or both.")
        if self.has_tubemq and ("master" in self.roles) == (self.master is not None):
            raise UsageError(
                "A node that is no master needs `master`, and no other does.",
                hint="For example tubemq://10.0.0.1:8715",
            )
        if self.reachable_host in {"0.0.0.0", "::", ""}:  # noqa: S104 - refused
            raise UsageError(
                f"Clients cannot connect to {self.host!r}.",
                hint="Say in `advertised_host` how they reach this machine.",
            )
        for name, most in _MOST.items():
            if not 0 < getattr(self, name) <= most:
                raise UsageError(f"`{name}` is {getattr(self, name)}; it is 1 to {most}.")
        if self.unfinished_bytes < limits.INBOXES_BYTES_MIN:
            raise UsageError(
                f"`unfinished_bytes` is {self.unfinished_bytes}; it is at least "
                f"{limits.INBOXES_BYTES_MIN}: one large request has to fit."
            )
        self._check_accounts()
        self._check_rocketmq()
        self._segment_bytes()

    def __repr__(self) -> str:
        return masked(self, "users", "broker_password", "admin_token")

    def _check_accounts(self) -> None:
        if not all(self.users) or not all(self.users.values()):
            raise UsageError("`users` holds an account without a name or without a password.")
        if bool(self.broker_user) != bool(self.broker_password):
            raise UsageError("`broker_user` and `broker_password` go together.")
        known = frozenset(get_args(Protected))
        if not self.unprotected <= known:
            wrong = ", ".join(sorted(self.unprotected - known))
            hint = f"It names some of {', '.join(sorted(known))}."
            raise UsageError(f"`unprotected` names {wrong}.", hint=hint)

    def _check_rocketmq(self) -> None:
        if self.rocketmq_port is not None and 0 < self.rocketmq_port <= -FAST_PORT_STEP:
            raise UsageError(f"`rocketmq_port` is {self.rocketmq_port}; it is 3 or more, or 0.")
        if self.is_slave != (self.rocketmq_broker_id > 0):
            raise UsageError("A slave's `rocketmq_broker_id` is above 0, a master's is 0.")
        if self.role == "SYNC_MASTER" and self.ha_port is None:
            raise UsageError("A SYNC_MASTER needs slaves, and they need `ha_port`.")
        if self.is_slave and not self.name_servers:
            raise UsageError("A slave needs the name servers of its master: `namesrv`.")
        if not self.has_tubemq and self.own_name_server is None and self.rocketmq_broker is None:
            raise UsageError("A node without TubeMQ needs `namesrv`, or a port for its own.")

    def port_option(self, port: int) -> str:
        """The name of the option that sets a port; "" when none does.

        >>> NodeOptions(directory=Path("data"), admin_port=9000).port_option(9000)
        'admin_port'
        """
        for name in _PORTS:
            if port and getattr(self, name) == port:
                return name
        return "rocketmq_port" if port and port == self.fast_port else ""

    @property
    def reachable_host(self) -> str:
        """The address that others use."""
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
        """The remote name servers, as host:port.

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
        """How name servers elsewhere, and a slave's master, are asked; None for plainly."""
        if (self.namesrv or "").startswith(ROCKETMQ_TLS_SCHEME):
            return self.tls or net.TlsOptions()
        return None

    @property
    def rocketmq_scheme(self) -> str:
        """What the URL of the RocketMQ door begins with."""
        only_tls = self.tls is not None and self.tls_required
        secure = only_tls if self.namesrv is None else self.outgoing_tls is not None
        return ROCKETMQ_TLS_SCHEME if secure else ROCKETMQ_SCHEME

    @property
    def has_tubemq(self) -> bool:
        """Whether TubeMQ is spoken; a slave only copies what its master has."""
        return "tubemq" in self.doors and not self.is_slave

    @property
    def own_master(self) -> bool:
        """Whether there is a TubeMQ master here."""
        return self.has_tubemq and "master" in self.roles

    @property
    def own_name_server(self) -> int | None:
        """The port of the name server here; None without one."""
        here = "rocketmq" in self.doors and "master" in self.roles and not self.name_servers
        return self.namesrv_port if here else None

    @property
    def rocketmq_broker(self) -> int | None:
        """The port of the RocketMQ broker here; None without one."""
        findable = self.own_name_server is not None or self.name_servers
        here = "rocketmq" in self.doors and "broker" in self.roles and findable
        return self.rocketmq_port if here else None

    @property
    def is_slave(self) -> bool:
        """Whether the RocketMQ broker only follows a master."""
        return self.role == "SLAVE"

    @property
    def fast_port(self) -> int:
        """The port of the RocketMQ broker for everything but pulls; 0 for any free one."""
        if self.rocketmq_fast_port is not None or not self.rocketmq_port:
            return self.rocketmq_fast_port or 0
        return self.rocketmq_port + FAST_PORT_STEP

    @property
    def has_accounts(self) -> bool:
        """Whether what is not `unprotected` is served to accounts only."""
        return bool(self.users) or self.rocketmq_access

    def protects(self, part: Protected) -> bool:
        """Whether accounts protect a part of the node."""
        if part in {"namesrv", "replication"} and "rocketmq" in self.unprotected:
            return False
        return self.has_accounts and part not in self.unprotected

    @property
    def accounts(self) -> dict[str, str]:
        """The accounts of the options: passwords by name."""
        own = {self.broker_user: self.broker_password} if self.broker_user else {}
        return {**self.users, **own}

    @property
    def account(self) -> tuple[str, str] | None:
        """Name and password with which this node's brokers sign; None without."""
        if self.broker_user:
            return self.broker_user, self.broker_password
        return next(iter(self.users.items()), None)

    @property
    def http_token(self) -> str | None:
        """What changes over HTTP may give as `confModAuthToken`; None for an account instead."""
        if self.admin_token is None and not self.has_accounts:
            return JAVA_TOKEN
        return self.admin_token

    @property
    def names(self) -> frozenset[str]:
        """The host names by which this node may be called."""
        own = {"localhost", self.host, self.reachable_host, platform.node()}
        return self.admin_names | {name for name in own if name}

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the node."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def warnings(self) -> list[str]:
        """What everybody who reaches the node may do, and how to close it.

        >>> NodeOptions(directory=Path(".")).warnings
        []
        >>> found = NodeOptions(
        ...     directory=Path("."), users={"a": "b"}, unprotected=frozenset({"tubemq"})
        ... ).warnings
        >>> found[0][:57]
        'TubeMQ is served without accounts: whoever reaches 127.0.'
        """
        if not self.has_accounts:
            text = (
                f"{self.host} is open to the network without accounts: whoever reaches it can read "
                "and write everything. Set `users`, or listen on 127.0.0.1."
            )
            return [] if self.is_local else [text]
        parts: dict[Protected, tuple[str, bool]] = {
            "tubemq": ("TubeMQ is served", self.has_tubemq),
            "rocketmq": ("RocketMQ is served", self.rocketmq_broker is not None),
            "namesrv": ("The name server takes changes", self.own_name_server is not None),
            "replication": ("The log is replicated", self._replicates),
            "admin": (
                "Queries over HTTP are answered", self.admin_port is not None and self.has_tubemq
            ),
        }  # fmt: skip
        found = [
            f"{what} without accounts: whoever reaches {self.host} can use it. "
            f"Take `{part}` out of `unprotected`."
            for part, (what, here) in parts.items()
            if here and not self.protects(part)
        ]
        if self._replicates and self.protects("replication"):
            found.append(
                f"The protocol of replication has no accounts: port {self.ha_port} gives the whole "
                "log to trusted addresses, and to those from which an account that may do "
                "everything has signed a request."
            )
        if self.admin_token == JAVA_TOKEN:
            found.append("`admin_token` is the well-known abc. Take another one, or none.")
        return found

    @property
    def _replicates(self) -> bool:
        return self.ha_port is not None and self.rocketmq_broker is not None and not self.is_slave

    @property
    def held_ms(self) -> int:
        """How long a get that finds nothing waits."""
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
        """What this means for the store."""
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
        """What this means for the RocketMQ broker.

        Args:
            port: the one that it got.
            ha_port: the one for slaves; 0 without.
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
        """What this means for the master.

        Args:
            passwords: of the accounts that may do everything, by name; None without accounts.
            web_port: where its HTTP administration is; 0 for nowhere.
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
