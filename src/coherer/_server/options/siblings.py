"""Siblings: the brokers of `coherer serve --brokers N`, which run on one machine.

Each broker is a separate process. Broker 0 is configured like a node with one broker: it has the
master and the name server (unless these are remote), the directory and the ports of the options.
The others are brokers only, and join the master and the name server of broker 0. For the sibling
with the number i:

* its TubeMQ id is `broker_id` + i;
* its RocketMQ name ends in the i-th letter after that of broker 0, as in broker-a and broker-b; if
  that name does not end in a dash and a letter, the number i + 1 is appended to it;
* its ports are those of the options plus i * `port_step`; a port that is 0 or absent stays so;
* its files are in `brokers/ID` of the directory.

`SiblingStates` holds the supervisor's reports to broker 0 about the processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from coherer._server.options.node import PORTS, NodeOptions
from coherer.errors import UsageError

DIRECTORY: Final = "brokers"
"""The directory of the other brokers, in the directory of broker 0."""

HEARTBEAT_MS: Final = 200
"""The longest interval between heartbeats of the other brokers to the master of broker 0. It limits
the delay until a new topic is on all brokers."""

_ADVERTISED: Final = ("advertised_broker_port", "advertised_admin_port", "advertised_rocketmq_port")
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104
_PORT_MAX: Final = 0xFFFF


class SiblingState(msgspec.Struct, frozen=True):
    """The state of a broker process, as reported by the supervisor.

    Args:
        broker_id: its TubeMQ id.
        name: its RocketMQ name.
        running: whether the process runs.
        ready: whether the master and the name servers have accepted it.
        restarts: how often it was restarted after an unexpected end.
        note: how it last ended; "" if it has not ended yet.
        drained: whether it was drained; it is not restarted then.
    """

    broker_id: int
    name: str
    running: bool = False
    ready: bool = False
    restarts: int = 0
    note: str = ""
    drained: bool = False

    @property
    def problem(self) -> str:
        """Why it does not serve; "" if it does, or if it was drained."""
        if self.drained:
            return ""  # an operator stopped it
        if self.running:
            return "" if self.ready else f"Broker {self.broker_id} is starting."
        return f"Broker {self.broker_id} is not running{f': {self.note}' if self.note else '.'}"


def broker_name(first: str, number: int) -> str:
    """Return the RocketMQ name of a sibling.

    >>> broker_name("broker-a", 1), broker_name("broker-y", 2), broker_name("east", 1)
    ('broker-b', 'broker-y-3', 'east-2')
    """
    letter = first[-1:]
    if number and first[-2:-1] == "-" and letter.isascii() and letter.isalpha():
        last = "z" if letter.islower() else "Z"
        if ord(letter) + number <= ord(last):
            return first[:-1] + chr(ord(letter) + number)
    return f"{first}-{number + 1}" if number else first


def names(options: NodeOptions) -> dict[int, str]:
    """Return the RocketMQ name of each sibling, by TubeMQ id.

    >>> names(NodeOptions(directory=Path("data"), brokers=2))
    {1: 'broker-a', 2: 'broker-b'}
    """
    return {
        options.broker_id + number: broker_name(options.broker_name, number)
        for number in range(options.brokers)
    }


def sibling(
    options: NodeOptions,
    number: int,
    *,
    servers: Mapping[str, str] | None = None,
    fixed: Mapping[str, object] | None = None,
) -> NodeOptions:
    """Return the options of one of the brokers.

    Args:
        number: 0 for the first.
        servers: the options `master` and `namesrv` of the others; see `servers_of`.
        fixed: options that were determined at the first start, such as free ports.

    Raises:
        UsageError: a port would be too large.

    >>> options = NodeOptions(directory=Path("data"), brokers=2)
    >>> second = sibling(options, 1, servers={"master": "127.0.0.1:8715"})
    >>> second.broker_id, second.broker_port, second.broker_name, second.master
    (2, 8133, 'broker-b', '127.0.0.1:8715')
    """
    changes: dict[str, object] = {}
    if options.brokers > 1 and options.hold_ms is None:
        changes["hold_ms"] = 500  # a consumer asks several brokers in turn
    if number:
        changes |= _ports(options, number)
        changes |= {
            "brokers": 1,
            "roles": frozenset({"broker"}),
            "broker_id": options.broker_id + number,
            "broker_name": broker_name(options.broker_name, number),
            "directory": directory_of(options, number),
            "accounts_directory": options.accounts_home,
            "heartbeat_ms": min(options.heartbeat_ms, HEARTBEAT_MS),
            "master": options.master,
            "namesrv": options.namesrv,
            **(servers or {}),
        }
    return msgspec.structs.replace(options, **(changes | dict(fixed or {})))


def servers_of(options: NodeOptions, master_port: int, namesrv_port: int) -> dict[str, str]:
    """Return the addresses of the master and the name server of broker 0 as options.

    Args:
        master_port: the port of its master; -1 without one.
        namesrv_port: the port of its name server; -1 without one.

    >>> servers_of(NodeOptions(directory=Path("data")), 8715, 9876)
    {'master': '127.0.0.1:8715', 'namesrv': '127.0.0.1:9876'}
    """
    host = _ANY_ADDRESS.get(options.host, options.host)
    found: dict[str, str] = {}
    if master_port >= 0:
        found["master"] = f"{host}:{master_port}"
    if namesrv_port >= 0 and options.namesrv is None:
        # A certificate names the host that clients know.
        secure = options.tls is not None and options.tls_required
        address = f"rocketmqs://{options.reachable_host}" if secure else host
        found["namesrv"] = f"{address}:{namesrv_port}"
    return found


def directory_of(options: NodeOptions, number: int) -> Path:
    """Return the directory of a broker's files."""
    if not number:
        return options.directory
    return options.directory / DIRECTORY / str(options.broker_id + number)


def directories_in(directory: Path) -> list[Path]:
    """The directories of the other brokers of `--brokers` in that of the first, by number."""
    folder = directory / DIRECTORY
    found = [one for one in folder.iterdir() if one.name.isdecimal()] if folder.is_dir() else []
    return sorted(found, key=lambda one: int(one.name))


def check(options: NodeOptions, *, console_port: int = 0) -> None:
    """Check that the brokers can be started with the directory, each with ports of its own.

    Args:
        options: the options that the user gave.
        console_port: the port of a console on the same address; 0 without one.

    Raises:
        UsageError: the options contradict each other, or the directory has files of more brokers.
    """
    if options.hang_timeout_ms < 0:
        raise UsageError("`hang_timeout_ms` must be 0 or more.")
    if options.brokers > 1:
        if "broker" not in options.roles:
            raise UsageError("`brokers` is not possible for a node that is only a master.")
        if options.is_slave:
            raise UsageError(
                "A slave copies one broker, so it cannot have several `brokers`.",
                hint="Start a slave for each broker.",
            )
        for number in range(1, options.brokers):
            sibling(options, number, servers={"master": "127.0.0.1", "namesrv": "127.0.0.1"})
    _check_ports(options, console_port)
    known = {directory_of(options, number).name for number in range(1, options.brokers)}
    folder = options.directory / DIRECTORY
    lost = [int(one.name) for one in directories_in(options.directory) if one.name not in known]
    if lost:
        ids = ", ".join(map(str, lost))
        needed = max(lost) - options.broker_id + 1
        raise UsageError(
            f"{folder} has messages of broker {ids}, which `brokers` = {options.brokers} does not "
            "start.",
            hint=f"Start it with --brokers {needed}. If these messages are no longer needed, move "
            "the directories away first.",
        )


def _check_ports(options: NodeOptions, console_port: int) -> None:
    """Check that ports are numbers of ports, and that each is used once."""
    used: dict[int, str] = {console_port: "`port`"} if console_port else {}
    servers = {"master": "127.0.0.1", "namesrv": "127.0.0.1"}
    for number in range(options.brokers):
        broker = sibling(options, number, servers=servers if number else None)
        of = f" of broker {broker.broker_id}" if number else ""
        for name, port in _listened(broker):
            if not 0 <= port <= _PORT_MAX:
                raise UsageError(f"`{name}` is {port}; ports are 0 to {_PORT_MAX}.")
            if port and port in used:
                raise UsageError(
                    f"`{name}`{of} and {used[port]} are the same port, {port}.",
                    hint="Choose another one, or 0 for any free port.",
                )
            used[port] = f"`{name}`{of}"


def _listened(options: NodeOptions) -> Iterator[tuple[str, int]]:
    """Name and number of the ports that a node with these options listens on."""
    broker = options.has_tubemq and "broker" in options.roles
    ports: dict[str, int | None] = {
        "admin_port": options.admin_port,
        "metrics_port": options.metrics_port if options.metrics else None,
        "master_port": options.master_port if options.own_master else None,
        "broker_port": options.broker_port if broker else None,
        "namesrv_port": options.own_name_server,
        "rocketmq_port": options.rocketmq_broker,
        "ha_port": options.ha_port if options.rocketmq_broker is not None else None,
    }
    if options.rocketmq_broker is not None:
        ports["rocketmq_fast_port"] = options.fast_port
    if options.tls is not None:
        ports["master_tls_port"] = options.master_tls_port if options.own_master else None
        ports["broker_tls_port"] = options.broker_tls_port if broker else None
    yield from ((name, port) for name, port in ports.items() if port is not None)


def _ports(options: NodeOptions, number: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in (*PORTS, *_ADVERTISED):
        port: int | None = getattr(options, name)
        if port:
            found[name] = port + number * options.port_step
            if found[name] > _PORT_MAX:
                raise UsageError(
                    f"`{name}` of broker {options.broker_id + number} would be {found[name]}, "
                    f"which is above {_PORT_MAX}.",
                    hint="Choose a lower port or a smaller `port_step`.",
                )
    return found


class SiblingStates:
    """The states of the processes of this node's brokers, by TubeMQ id.

    >>> states = SiblingStates()
    >>> states.update([SiblingState(2, "broker-b", note="It was killed.", restarts=1)])
    >>> states.problem(1)
    'Broker 2 is not running: It was killed.'
    """

    def __init__(self) -> None:
        self._states: dict[int, SiblingState] = {}

    def update(self, states: Iterable[SiblingState]) -> None:
        """Replace all states."""
        self._states = {one.broker_id: one for one in states}

    def __iter__(self) -> Iterator[SiblingState]:
        return iter(self._states.values())

    def problem(self, but: int) -> str:
        """Why one of the brokers does not serve, ignoring the id `but`; "" if all do."""
        problems = (one.problem for one in self._states.values() if one.broker_id != but)
        return next(filter(None, problems), "")

    @property
    def drained(self) -> set[int]:
        """The ids of the brokers that were drained."""
        return {one.broker_id for one in self._states.values() if one.drained}

    def serving(self, but: int) -> list[int]:
        """The ids of the brokers that run, except for `but`.

        >>> states = SiblingStates()
        >>> states.update([SiblingState(1, "broker-a", True), SiblingState(2, "broker-b", True)])
        >>> states.serving(but=1)
        [2]
        """
        return [
            one.broker_id
            for one in self._states.values()
            if one.running and not one.drained and one.broker_id != but
        ]
