"""Warnings about parts of a node that are open to everyone."""

from __future__ import annotations

from coherer._server.options.node import JAVA_TOKEN, NodeOptions, Protected


def warnings(options: NodeOptions) -> list[str]:
    """Return a warning for each part of the node that is open to everyone.

    >>> from pathlib import Path
    >>> warnings(NodeOptions(directory=Path(".")))
    []
    >>> found = warnings(
    ...     NodeOptions(directory=Path("."), users={"a": "b"}, unprotected=frozenset({"tubemq"}))
    ... )
    >>> found[0][:57]
    'TubeMQ is served without accounts: anyone who can reach 1'
    """
    host = options.host
    if not options.has_accounts:
        text = (
            f"{host} is open to the network without accounts: anyone who can reach it can read and "
            "write everything. Set `users`, or listen on 127.0.0.1."
        )
        return [] if options.is_local else [text]
    has_broker = options.rocketmq_broker is not None
    replicates = options.ha_port is not None and has_broker and not options.is_slave
    parts: dict[Protected, tuple[str, bool]] = {
        "tubemq": ("TubeMQ is served", options.has_tubemq),
        "rocketmq": ("RocketMQ is served", has_broker),
        "namesrv": ("The name server accepts changes", options.own_name_server is not None),
        "replication": ("The log is replicated", replicates),
        "admin": (
            "Queries over HTTP are answered",
            options.admin_port is not None and options.has_tubemq,
        ),
    }
    found = [
        f"{served} without accounts: anyone who can reach {host} can use it. "
        f"Remove {part} from `unprotected`."
        for part, (served, active) in parts.items()
        if active and not options.protects(part)
    ]
    if replicates and options.protects("replication"):
        found.append(
            f"Port {options.ha_port} serves the whole log to slaves that sign with an account with "
            "all permissions. Java's slaves cannot sign: every program at an address in "
            "globalWhiteRemoteAddresses (conf/plain_acl.yml) can copy the log without an account."
        )
    if options.admin_token == JAVA_TOKEN:
        found.append("`admin_token` is the well-known abc. Choose another one, or none.")
    return found
