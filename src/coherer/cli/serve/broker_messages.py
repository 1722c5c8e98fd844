"""The messages between the processes of `coherer serve --brokers`, as lines of JSON.

The supervisor writes to the standard input of each `broker_process`: first `Begin`, later `Reload`,
`Announce`, `Drain` and `Siblings`, and `Ask` at regular intervals. At the end of its input a broker
stops, also if the supervisor was killed. A broker writes to its standard output: `Serving` when its
ports are open, `Registered` when the master and the name servers have accepted it, `Alive` for each
`Ask`, `Drained`, or `Failed`. Its log goes to its standard error. This needs no signals, so it also
works on Windows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from coherer._server.node.node import Node
from coherer._server.options.node import NodeOptions
from coherer._server.options.siblings import SiblingState, sibling
from coherer.cli.serve.node_config import named, node_options
from coherer.cli.serve.options import values_of
from coherer.errors import UsageError


class Begin(msgspec.Struct, tag=True, frozen=True):
    """Start a broker.

    Args:
        number: 0 for the first.
        given: the command line of the supervisor. The broker itself reads the environment and the
            configuration file, so their secrets are not sent.
        servers: the options `master` and `namesrv` that lead to broker 0.
        fixed: options that were determined at the first start: free ports, and the account that
            the brokers use for each other if the user has not set one.
    """

    number: int
    given: dict[str, Any]
    servers: dict[str, str] = {}
    fixed: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"Begin(number={self.number})"  # the command line may have passwords


class Reload(msgspec.Struct, tag=True, frozen=True):
    """Read the configuration again."""


class Announce(msgspec.Struct, tag=True, frozen=True):
    """Register with the name servers at once, because broker 0 has restarted its own."""


class Drain(msgspec.Struct, tag=True, frozen=True):
    """Drain the broker; it stops when consumers have finished."""


class Ask(msgspec.Struct, tag=True, frozen=True):
    """Answer with `Alive`."""


class Siblings(msgspec.Struct, tag=True, frozen=True):
    """The states of all broker processes; only broker 0 receives them."""

    states: list[SiblingState]


class Serving(msgspec.Struct, tag=True, frozen=True):
    """The broker's ports are open.

    Args:
        ports: the ports, by the names of their options.
        url: the URL for TubeMQ's clients.
        rocketmq_url: the URL for RocketMQ's clients; None if the node does not serve RocketMQ.
    """

    ports: dict[str, int]
    url: str
    rocketmq_url: str | None = None


class Registered(msgspec.Struct, tag=True, frozen=True):
    """The master and the name servers have accepted the broker."""


class Alive(msgspec.Struct, tag=True, frozen=True):
    """The event loop of the broker runs."""


class Drained(msgspec.Struct, tag=True, frozen=True):
    """The broker is drained and stops; the supervisor must not restart it."""


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The broker could not start, or could not stop cleanly.

    Args:
        text: the error.
        hint: what to do.
        usage: whether it is a `UsageError`, so that restarting cannot help.
    """

    text: str
    hint: str = ""
    usage: bool = False


ToBroker: TypeAlias = Begin | Reload | Announce | Drain | Ask | Siblings
FromBroker: TypeAlias = Serving | Registered | Alive | Drained | Failed


def line_of(message: ToBroker | FromBroker) -> bytes:
    r"""Encode a message as a line.

    >>> line_of(Registered())
    b'{"type":"Registered"}\n'
    """
    return msgspec.json.encode(message, enc_hook=_plain) + b"\n"


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not an option of the command line.")


def options_of(begin: Begin) -> NodeOptions:
    """Return the options of the broker, from the command line, the file and the environment.

    Raises:
        UsageError: an option is malformed.
    """
    values = values_of(given_of(begin))
    try:
        return sibling(node_options(values), begin.number, servers=begin.servers, fixed=begin.fixed)
    except UsageError as error:
        raise named(error, values) from error


def given_of(begin: Begin) -> dict[str, Any]:
    """Return the command line in the form that `coherer serve` receives it."""
    given = dict(begin.given)
    if given.get("config") is not None:
        given["config"] = Path(given["config"])
    return given


def serving(node: Node) -> Serving:
    """Describe a running node."""
    has_rocketmq = node.namesrv_port >= 0 or node.rocketmq_port >= 0
    return Serving(
        node.ports(),
        node.url,
        node.rocketmq_url if has_rocketmq else None,
    )
