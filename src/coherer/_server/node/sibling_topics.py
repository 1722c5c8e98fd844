"""Topics registered by the sibling brokers of `coherer serve --brokers`.

Broker 0 has them from the registrations at its name server.
"""

from __future__ import annotations

from collections.abc import Collection

from coherer._rules.rocketmq.routes import RouteTable
from coherer._server.core.core import Core
from coherer._server.options.node import NodeOptions
from coherer._server.options.siblings import names
from coherer._server.rocketmq.namesrv.nameserver import NameServer
from coherer._server.tubemq.master.master import Master
from coherer._server.tubemq.master.topic_sync import SiblingSync


def follow(options: NodeOptions, master: Master, routes: RouteTable, core: Core) -> None:
    """Start copying the topics of the other brokers to the master's catalog."""
    known = names(options)
    sync = SiblingSync(master, known, core.topics.is_internal)
    others = {name for broker, name in known.items() if broker != options.broker_id}
    routes.follow(others, sync.registered)


def unregistered(
    options: NodeOptions,
    master: Master | None,
    name_server: NameServer | None,
    drained: Collection[int] = (),
) -> str:
    """Return which broker has not registered with the master or name server; "" if all have.

    Brokers with the ids in `drained` are ignored.
    """
    for broker, name in names(options).items():
        if broker in drained:
            continue
        running = None if master is None else master.state.broker_registry.get(broker)
        if master is not None and (running is None or not running.online):
            return f"Broker {broker} has not registered with the master yet."
        if name_server is not None and name not in name_server.routes.brokers:
            return f"Broker {broker} ({name}) has not registered with the name server yet."
    return ""
