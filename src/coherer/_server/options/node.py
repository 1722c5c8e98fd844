"""The options of a node: a field for each, with its type, default, limit and help text.

See docs/protocol/rocketmq.md, section 2.3.

The command line of `coherer serve`, its configuration file, its environment variables and the
embedded node of tests derive from `NodeOptions`: adding a field adds an option to all of them.
"""

# Without `from __future__ import annotations`, which would turn about 70 annotations into text.
# Every start would parse and evaluate it three times (10 ms).
import errno
import ipaddress
import math
import platform
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias, get_args

import msgspec

from coherer import _net as net
from coherer import limits
from coherer._common.masking import masked, masked_url
from coherer._record.system_topics import DELAY_LEVELS, parse_levels
from coherer._server.options import parsing
from coherer._server.options.rocketmq import MESSAGE_BYTES, Role
from coherer._server.options.settings import Section, Setting, settings
from coherer._store.model import StoreOptions, check_retention, segment_bytes_for
from coherer._store.topic_retention import TopicLimit
from coherer.errors import UsageError

_OF_THE_PORT: Final = frozenset({errno.EADDRINUSE, errno.EACCES})
"""Errors of a port itself: the address is valid."""

SCHEME: Final = "tubemq://"
ROCKETMQ_SCHEME: Final = "rocketmq://"
ROCKETMQ_TLS_SCHEME: Final = "rocketmqs://"
NAMESRV_PORT: Final = 9876
FAST_PORT_STEP: Final = -2
"""RocketMQ clients derive a broker's second port, for urgent requests, from its main port (section
2.3)."""

JAVA_TOKEN: Final = "abc"  # noqa: S105 - the default of Java's TubeMQ

Protected: TypeAlias = Literal["tubemq", "rocketmq", "namesrv", "replication", "admin"]
"""The parts of a node that accounts protect."""

NODE: Final = "Node"
NETWORK: Final = "Network"
STORAGE: Final = "Storage"
TOPICS: Final = "Topics"
TUNING: Final = "Times and sizes"
SECURITY: Final = "Security"
ROCKETMQ: Final = "RocketMQ"


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a node; the `Setting` of each field documents it.

    Options that name a master or a broker are TubeMQ's, unless their name says RocketMQ.

    >>> NodeOptions(directory=Path("data")).broker_port
    8123
    """

    # fmt: off
    directory: Annotated[Path, Setting(
        "Directory of the node's files; created if missing.",
        panel=NODE, short="-d", default="coherer-data",
    )]
    roles: Annotated[frozenset[Literal["master", "broker"]], Setting(
        "Run a master (with a name server), a broker, or both in one node.",
        panel=NODE, flag="--role", choices=("both", "master", "broker"), default="both",
        parse=parsing.roles,
    )] = frozenset({"master", "broker"})
    protocols: Annotated[frozenset[Literal["tubemq", "rocketmq"]], Setting(
        "Protocols to serve.",
        panel=NODE, flag="--protocol", choices=("both", "tubemq", "rocketmq"), default="both",
        parse=parsing.protocols,
    )] = frozenset({"tubemq", "rocketmq"})
    master: Annotated[str | None, Setting(
        "Masters of a node that is only a broker: host:port, separated by commas.", panel=NODE,
    )] = None
    zookeeper: Annotated[str | None, Setting(
        "For several masters: ZooKeeper's servers, host:port separated by commas, and a path.",
        panel=NODE, default="one master, with its metadata in a file",
    )] = None
    zookeeper_session_ms: Annotated[int, Setting(
        "How long ZooKeeper waits for a silent master; the others take over then.", maximum=20_000,
    )] = 3_000
    broker_id: Annotated[int, Setting(
        "Number of the broker, unique in its cluster.", panel=NODE, maximum=0x7FFF,
    )] = 1
    brokers: Annotated[int, Setting(
        "Number of broker processes, to use several cores. Each has its own store and ports.",
        panel=NODE, maximum=64,
    )] = 1
    port_step: Annotated[int, Setting(
        "With --brokers: distance from a broker's ports to those of the next broker.",
        panel=NODE, maximum=1_000,
    )] = 10
    hang_timeout_ms: Annotated[int, Setting(
        "With --brokers: silence after which a broker is killed and restarted; 0: never.")] = 30_000

    host: Annotated[str, Setting(
        "Address to listen on. The default can be reached from this machine only.", panel=NETWORK,
    )] = "127.0.0.1"
    advertised_host: Annotated[str | None, Setting(
        "Address that clients and brokers connect to.", panel=NETWORK, default="that of --host",
    )] = None
    advertised_broker_port: Annotated[int | None, Setting(
        "Port of the broker that clients connect to, behind a proxy or a container's published "
        "port.", panel=NETWORK, default="the broker's own",
    )] = None
    master_port: Annotated[int, Setting(
        "Port of the master; 0 for any free port.", panel=NETWORK, port=True,
    )] = 8715
    broker_port: Annotated[int, Setting(
        "Port of the broker; 0 for any free port.", panel=NETWORK, port=True,
    )] = 8123
    admin_port: Annotated[int | None, Setting(
        "Port of the HTTP administration; 0 for any free port.",
        panel=NETWORK, port=True, default="8080, and 8081 for a node that is only a broker",
    )] = 8080
    advertised_admin_port: Annotated[int | None, Setting(
        "Port of the HTTP administration that clients connect to, behind a proxy or a container's "
        "published port.", default="its own",
    )] = None
    admin_names: Annotated[frozenset[str], Setting(
        "Another host name under which the HTTP administration may be called; may be repeated.",
        panel=NETWORK, flag="--admin-name", metavar="NAME",
    )] = frozenset()

    metrics: Annotated[bool, Setting(
        "Serve metrics for Prometheus at /metrics, on the port of the HTTP administration or on "
        "--metrics-port.", panel=NETWORK,
    )] = True
    metrics_port: Annotated[int | None, Setting(
        "Port of its own for the metrics, which then need no account; 0 for any free port.",
        panel=NETWORK, port=True, default="that of the administration",
    )] = None

    flush: Annotated[Literal["async", "sync"], Setting(
        "When to acknowledge a message: async, once it is in the process's log; sync, once it is "
        "on disk.", panel=STORAGE,
    )] = "async"
    flush_interval_ms: Annotated[int, Setting(
        "With async, how far the disk may lag behind.", panel=STORAGE,
    )] = 500
    retention_hours: Annotated[float | None, Setting(
        "How long to keep messages, at least; 0 keeps them forever.",
        panel=STORAGE, default="72", parse=parsing.hours,
    )] = 72
    retention_bytes: Annotated[int | None, Setting(
        "Size limit of the log, accurate to one of its files; it must hold two files.",
        panel=STORAGE, default="no limit",
    )] = None
    disk_free_min_bytes: Annotated[int | None, Setting(
        "Refuse sends while less than this is free on the disk, and until half as much again is; 0 "
        "refuses them only when the disk is full.", panel=STORAGE,
        default="1% of the disk, at most 256 MiB",
    )] = None
    topic_retention: Annotated[dict[str, str], Setting(
        "TOPIC=TIME, TOPIC=SIZE (of each partition) or TOPIC=TIME/SIZE, such as flights=24h or "
        "flights=24h/10GiB: hide older messages of a topic, sooner than the log deletes them; may "
        "be repeated.", panel=STORAGE, metavar="TOPIC=LIMIT", parse=parsing.limits_of,
    )] = {}
    segment_bytes: Annotated[int | None, Setting(
        "File size of a new log; an existing log keeps its own.",
        panel=STORAGE, default="1 GiB, or an eighth of --retention-bytes",
    )] = None

    auto_create_topics: Annotated[bool, Setting(
        "Create a topic when it is first used.", panel=TOPICS,
    )] = True
    default_partitions: Annotated[int, Setting(
        "Partitions of a topic that is created on first use.",
        panel=TOPICS, maximum=limits.TOPIC_PARTITIONS_MAX,
    )] = 8
    max_message_bytes: Annotated[int | None, Setting(
        "Size limit of a message in this cluster.",
        panel=TOPICS, default="1 MiB, or the limit set before",
    )] = None

    transfer_bytes: Annotated[int, Setting(
        "How much one fetch of a consumer reads.", panel=TUNING,
    )] = 512 * 1024
    hold_ms: Annotated[int | None, Setting(
        "How long a fetch waits when there are no messages.",
        panel=TUNING, default="5,000; with remote masters 500",
    )] = None
    balance_period_ms: Annotated[int, Setting(
        "Delay before a failed rebalance is tried again.", panel=TUNING,
    )] = 1_000
    lease_timeout_ms: Annotated[int, Setting(
        "Silence after which a broker takes a consumer's partitions away.", panel=TUNING,
    )] = 30_000
    client_timeout_ms: Annotated[int, Setting(
        "Silence after which the master removes a producer or consumer.", panel=TUNING,
    )] = 30_000
    broker_timeout_ms: Annotated[int, Setting(
        "Silence after which the master takes a broker out of service.", panel=TUNING,
    )] = 30_000
    heartbeat_ms: Annotated[int, Setting(
        "Interval at which a broker reports to remote masters.", panel=TUNING, maximum=3_600_000,
    )] = 1_000
    unfinished_bytes: Annotated[int, Setting(
        "Memory for requests that have arrived only in part, from all clients; at least 32 MiB. "
        "Beyond it large requests wait, and stalled connections are closed.",
    )] = net.ConnectionLimits().unfinished_bytes
    write_buffer_bytes: Annotated[int, Setting(
        "Unsent bytes above which the node stops reading from a client; at least 64 KiB.",
    )] = net.ConnectionLimits().write_buffer_high_bytes
    connections_max: Annotated[int, Setting(
        "Connections that each port accepts, if the process may open that many files.",
        maximum=1_000_000,
    )] = net.ConnectionLimits().connections_max

    users: Annotated[dict[str, str], Setting(
        "NAME=PASSWORD of an account with all permissions; may be repeated. With any account, "
        "TubeMQ, RocketMQ (access key and secret key) and the HTTP administration require one.",
        panel=SECURITY, flag="--user", metavar="NAME=PASSWORD", secret=True,
        parse=parsing.accounts,
    )] = {}
    accounts_directory: Annotated[Path | None, Setting(
        "Directory with conf/plain_acl.yml and conf/tools.yml.", default="that of the files",
    )] = None
    unprotected: Annotated[frozenset[Protected], Setting(
        "With accounts: a part that is served without one nevertheless; may be repeated. namesrv "
        "is for Java's brokers, which do not sign; admin opens queries over HTTP.",
        panel=SECURITY,
    )] = frozenset()
    namesrv_signed_queries: Annotated[bool, Setting(
        "With accounts: refuse queries to the name server that no account has signed. By default "
        "anyone may ask for topics and the addresses of brokers, as with Java's, because some "
        "clients do not sign these queries.",
        panel=SECURITY,
    )] = False
    broker_user: Annotated[str, Setting(
        "Account with which brokers authenticate at the master.",
        panel=SECURITY, default="with accounts, the first --user",
    )] = ""
    broker_password: Annotated[str, Setting(
        "Password of --broker-user.", panel=SECURITY, secret=True,
    )] = ""
    visit_token_check: Annotated[bool, Setting(
        "Refuse clients that did not come through a master.",
        panel=SECURITY, default="on with accounts, off without",
    )] = False
    admin_token: Annotated[str | None, Setting(
        "Token that changes over HTTP must carry (confModAuthToken).",
        panel=SECURITY, env="COHERER_TOKEN", secret=True,
        default="abc, as in Java; with accounts no token, an account is required",
    )] = None
    tls: Annotated[net.TlsOptions | None, Section({
        "certificate": Setting(
            "PEM file with the certificate chain. Opens the ports for TLS.", panel=SECURITY,
        ),
        "key": Setting(
            "PEM file with the private key.", panel=SECURITY, default="the certificate's file",
        ),
        "key_password": Setting(
            "Password of the private key.", panel=SECURITY, secret=True,
        ),
        "trust": Setting(
            "PEM file with certificate authorities; clients must then present a certificate.",
            panel=SECURITY,
        ),
    })] = None
    master_tls_port: Annotated[int, Setting(
        "Port of the master for TLS.", panel=SECURITY, port=True,
    )] = 8716
    broker_tls_port: Annotated[int, Setting(
        "Port of the broker for TLS.", panel=SECURITY, port=True,
    )] = 8124

    rocketmq_port: Annotated[int | None, Setting(
        "Port of the broker; 0 for any free ports.", panel=ROCKETMQ, port=True,
    )] = 10911
    rocketmq_fast_port: Annotated[int | None, Setting(
        "Port of the broker for everything but pulls.",
        port=True, default="two below --rocketmq-port",
    )] = None
    advertised_rocketmq_port: Annotated[int | None, Setting(
        "Port of the broker that clients connect to.", default="its own",
    )] = None
    namesrv_port: Annotated[int | None, Setting(
        "Port of the name server; 0 for any free port.", panel=ROCKETMQ, port=True,
    )] = 9876
    namesrv: Annotated[str | None, Setting(
        "Remote name servers instead of one in this node: host:port, separated by semicolons; "
        "rocketmqs:// in front of them for TLS.", panel=ROCKETMQ,
    )] = None
    cluster: Annotated[str, Setting("Name of the cluster.", panel=ROCKETMQ)] = "DefaultCluster"
    broker_name: Annotated[str, Setting(
        "Name of the broker, the same for a master and its slaves.", panel=ROCKETMQ,
    )] = "broker-a"
    role: Annotated[Role, Setting(
        "Role of the broker: a master, a master whose sends wait for a slave, or a slave, which "
        "serves RocketMQ only.", panel=ROCKETMQ, flag="--broker-role",
    )] = "ASYNC_MASTER"
    rocketmq_broker_id: Annotated[int, Setting(
        "0 for a master, above 0 for a slave.", panel=ROCKETMQ,
    )] = 0
    ha_port: Annotated[int | None, Setting(
        "Port from which slaves copy the whole log. Java's brokers use the one above their own.",
        panel=ROCKETMQ, port=True, default="none",
    )] = None
    rocketmq_access: Annotated[bool, Setting(
        "Require an account even without --user. conf/plain_acl.yml in the directory lists "
        "accounts and their permissions, in Java's format; TubeMQ and the administration accept "
        "only those with all permissions. conf/tools.yml may hold the broker's own account.",
        panel=ROCKETMQ, default="on with --user, off without",
    )] = False
    tls_required: Annotated[bool, Setting(
        "With a certificate: refuse plain connections on the RocketMQ ports.", panel=ROCKETMQ,
    )] = False
    delay_levels: Annotated[str, Setting("Delays of the levels of delayed messages.")] = (
        DELAY_LEVELS
    )
    transaction_timeout_ms: Annotated[int, Setting(
        "Age at which a half message is first checked: the broker asks its producer for the state.",
    )] = 6_000
    transaction_checks_max: Annotated[int, Setting(
        "Maximum number of checks of a half message.",
    )] = 15
    transaction_interval_ms: Annotated[int, Setting(
        "Interval between rounds of such checks.",
    )] = 60_000
    trace_topic: Annotated[bool, Setting(
        "Create the topic for RocketMQ's message traces at the start.",
    )] = False
    # fmt: on

    def __post_init__(self) -> None:
        if not self.roles or not self.roles <= {"master", "broker"}:
            raise UsageError("A node is a master, a broker, or both.")
        if not self.protocols or not self.protocols <= {"tubemq", "rocketmq"}:
            raise UsageError("The `protocols` of a node are tubemq, rocketmq, or both.")
        if self.has_tubemq and ("master" in self.roles) == (self.master is not None):
            raise UsageError(
                "A node that is only a broker needs `master`; a master must not have it.",
                hint="For example 10.0.0.1:8715.",
            )
        if self.reachable_host in {"0.0.0.0", "::", ""}:  # noqa: S104 - refused
            raise UsageError(
                f"Clients cannot connect to {self.host!r}.",
                hint="Set `advertised_host` to an address of this machine that they can reach.",
            )
        for name, most in MAXIMUMS.items():
            if not 0 < getattr(self, name) <= most:
                raise UsageError(f"`{name}` is {getattr(self, name)}; it must be 1 to {most}.")
        for name, least, use in (
            ("unfinished_bytes", net.UNFINISHED_BYTES_MIN, "one large request"),
            ("write_buffer_bytes", net.WRITE_BUFFER_BYTES_MIN, "a few answers"),
        ):
            if (given := getattr(self, name)) < least:
                raise UsageError(f"`{name}` is {given}; it must be {least} or more, to hold {use}.")
        self._check_topic_retention()
        alone = self.own_master and "broker" not in self.roles and self.master_port
        if self.zookeeper and not alone:
            raise UsageError(
                "`zookeeper` is for nodes that are only a master, with a fixed `master_port`.",
                hint="Start brokers as nodes of their own: --role broker --master host1,host2",
            )
        self._check_accounts()
        self._check_rocketmq()
        self.store_options()

    def __repr__(self) -> str:
        return masked(self, *(one.name for one in SETTINGS if one.setting.secret))

    def _check_accounts(self) -> None:
        if not all(self.users) or not all(self.users.values()):
            raise UsageError("`users` has an account without a name or password.")
        if bool(self.broker_user) != bool(self.broker_password):
            raise UsageError("`broker_user` and `broker_password` must be set together.")
        known = frozenset(get_args(Protected))
        if not self.unprotected <= known:
            wrong = ", ".join(sorted(self.unprotected - known))
            hint = f"Choose from {', '.join(sorted(known))}."
            raise UsageError(f"`unprotected` has unknown parts: {wrong}.", hint=hint)

    def _check_topic_retention(self) -> None:
        hours, size = self.retention_hours, self.retention_bytes
        if hours is not None and not math.isfinite(hours):
            raise UsageError(f"`retention_hours` is {hours}; it must be a finite number.")
        for topic, limit in self.topic_limits.items():
            longer = hours is not None and (limit.age_ms or 0) > hours * 3_600_000
            if longer or (size is not None and (limit.size_bytes or 0) > size):
                raise UsageError(
                    f"`topic_retention` of {topic} is {self.topic_retention[topic]}, more than the "
                    "log keeps of all topics.",
                    hint="All topics share one log. Raise `retention_hours` or `retention_bytes`, "
                    "and give the other topics limits of their own.",
                )

    @property
    def topic_limits(self) -> dict[str, TopicLimit]:
        """The limits of single topics.

        Raises:
            UsageError: one is malformed.
        """
        return parsing.topic_limits(self.topic_retention)

    def _check_rocketmq(self) -> None:
        if self.rocketmq_port is not None and 0 < self.rocketmq_port <= -FAST_PORT_STEP:
            raise UsageError(f"`rocketmq_port` is {self.rocketmq_port}; it must be 0 or above 2.")
        if self.is_slave != (self.rocketmq_broker_id > 0):
            raise UsageError("`rocketmq_broker_id` must be above 0 for a slave, 0 for a master.")
        if self.role == "SYNC_MASTER" and self.ha_port is None:
            raise UsageError("A SYNC_MASTER needs `ha_port`, from which its slaves copy.")
        if self.is_slave and not self.name_servers:
            raise UsageError("A slave needs the name servers of its master: `namesrv`.")
        if not self.has_tubemq and self.own_name_server is None and self.rocketmq_broker is None:
            raise UsageError("A node without TubeMQ needs `namesrv` or `namesrv_port`.")

    def listen_hint(self, port: int, error: Exception) -> str:
        """The option to change if a port cannot be opened, in a sentence; "" if none sets it.

        >>> options = NodeOptions(directory=Path("data"), admin_port=9000)
        >>> error = Exception("Cannot listen on 127.0.0.1:9000.")
        >>> options.listen_hint(9000, error)
        '`admin_port` sets the port.'
        >>> error.__cause__ = OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        >>> options.listen_hint(9000, error)
        '`host` sets it.'
        """
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno not in _OF_THE_PORT:
            return "`host` sets it."
        found = [name for name in PORTS if port and getattr(self, name) == port]
        if port and port == self.fast_port:
            found.append("rocketmq_port")
        return f"`{found[0]}` sets the port." if found else ""

    @property
    def reachable_host(self) -> str:
        """The address that clients and other nodes connect to."""
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
    def connection_limits(self) -> net.ConnectionLimits:
        """The limits of the connections that the node accepts."""
        return net.ConnectionLimits(
            connections_max=self.connections_max,
            unfinished_bytes=self.unfinished_bytes,
            write_buffer_high_bytes=self.write_buffer_bytes,
            write_buffer_low_bytes=self.write_buffer_bytes // 4,
        )

    @property
    def outgoing_tls(self) -> net.TlsOptions | None:
        """TLS for connections to remote name servers and a slave's master; None for plain ones."""
        if (self.namesrv or "").startswith(ROCKETMQ_TLS_SCHEME):
            return self.tls or net.TlsOptions()
        return None

    @property
    def rocketmq_scheme(self) -> str:
        """The scheme of the URL for RocketMQ's clients."""
        only_tls = self.tls is not None and self.tls_required
        secure = only_tls if self.namesrv is None else self.outgoing_tls is not None
        return ROCKETMQ_TLS_SCHEME if secure else ROCKETMQ_SCHEME

    @property
    def has_tubemq(self) -> bool:
        """Whether the node serves TubeMQ; a slave never does."""
        return "tubemq" in self.protocols and not self.is_slave

    @property
    def own_master(self) -> bool:
        """Whether the node runs a TubeMQ master."""
        return self.has_tubemq and "master" in self.roles

    @property
    def own_name_server(self) -> int | None:
        """The port of the node's own name server; None without one."""
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
        """Whether the RocketMQ broker is a slave, which copies its master."""
        return self.role == "SLAVE"

    @property
    def fast_port(self) -> int:
        """The port of the RocketMQ broker for everything but pulls; 0 for any free port."""
        if self.rocketmq_fast_port is not None or not self.rocketmq_port:
            return self.rocketmq_fast_port or 0
        return self.rocketmq_port + FAST_PORT_STEP

    @property
    def accounts_home(self) -> Path:
        """The directory that contains `conf`, with the files of accounts."""
        return self.accounts_directory or self.directory

    @property
    def has_accounts(self) -> bool:
        """Whether the parts that are not `unprotected` require an account."""
        return bool(self.users) or self.rocketmq_access

    def protects(self, part: Protected) -> bool:
        """Whether a part of the node needs an account."""
        if part in {"namesrv", "replication"} and "rocketmq" in self.unprotected:
            return False
        return self.has_accounts and part not in self.unprotected

    @property
    def accounts(self) -> dict[str, str]:
        """Passwords of the accounts in these options, by name."""
        own = {self.broker_user: self.broker_password} if self.broker_user else {}
        return {**self.users, **own}

    @property
    def account(self) -> tuple[str, str] | None:
        """Name and password with which the node's brokers sign requests; None without accounts."""
        if self.broker_user:
            return self.broker_user, self.broker_password
        return next(iter(self.users.items()), None)

    @property
    def http_token(self) -> str | None:
        """The token that changes over HTTP may carry; None if they need an account."""
        if self.admin_token is None and not self.has_accounts:
            return JAVA_TOKEN
        return self.admin_token

    @property
    def names(self) -> frozenset[str]:
        """Host names under which the HTTP administration may be called."""
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
    def hold_timeout_ms(self) -> int:
        """How long a fetch waits when there are no messages."""
        if self.hold_ms is not None:
            return self.hold_ms
        return 5_000 if self.master is None else 500

    def store_options(self) -> StoreOptions:
        """The options of the store.

        Raises:
            UsageError: a value is invalid.
        """
        return StoreOptions(
            segment_bytes=self.log_file_bytes(),
            flush=self.flush,
            flush_interval_ms=self.flush_interval_ms,
            retention_hours=self.retention_hours,
            retention_bytes=self.retention_bytes,
            replica=self.is_slave,
            delay_levels_ms=parse_levels(self.delay_levels),
        )

    def log_file_bytes(self) -> int:
        """The file size of a new log.

        Raises:
            UsageError: `segment_bytes` and `retention_bytes` contradict each other.
        """
        if self.segment_bytes is None:
            default = MESSAGE_BYTES if self.rocketmq_broker is not None else 0
            largest = self.max_message_bytes or max(limits.MESSAGE_BYTES_DEFAULT, default)
            return segment_bytes_for(self.retention_bytes, largest)
        check_retention(self.retention_bytes, self.segment_bytes)
        return self.segment_bytes


SETTINGS: Final = tuple(settings(NodeOptions))
"""The options in the order of help texts."""

PORTS: Final = tuple(one.name for one in SETTINGS if one.setting.port)
"""Names of the options that are ports to listen on."""

MAXIMUMS: Final = {one.name: one.setting.maximum for one in SETTINGS if one.setting.maximum}
"""The options that are numbers above 0 with an upper limit."""
