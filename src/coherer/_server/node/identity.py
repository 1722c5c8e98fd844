"""Whose directory it is: the file `config/identity.json`.

A directory that is started as another broker than before would serve that broker's messages under
the wrong name: consumers would read them with the positions of the other broker. So the first start
writes down who the broker is, and a later one that names another is refused.

A directory of a Java broker has no such file: the first start here makes it, and Java's broker
ignores it. Whether a broker is a master or a slave is no part of it: a slave may become the master.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from coherer._server.node.node_options import NodeOptions
from coherer.errors import DamagedStoreError, UsageError

IDENTITY_FILE = "identity.json"


class Identity(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Who a broker is; None is not known.

    Args:
        broker_id: its number for TubeMQ's masters.
        cluster_name: its cluster for RocketMQ's name servers.
        broker_name: its name for them.
    """

    broker_id: int | None = None
    cluster_name: str | None = None
    broker_name: str | None = None

    @classmethod
    def of(cls, options: NodeOptions) -> Identity:
        """What a node with these options is."""
        rocketmq = options.rocketmq_broker is not None
        return cls(
            options.broker_id if options.has_tubemq else None,
            options.cluster if rocketmq else None,
            options.broker_name if rocketmq else None,
        )

    @classmethod
    def parse(cls, data: bytes) -> Identity:
        """Read the file.

        Raises:
            DamagedStoreError: it is not such a file.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise DamagedStoreError(f"{IDENTITY_FILE} cannot be read: {error}.") from error


def check_owner(found: Identity | None, options: NodeOptions) -> None:
    """Check that a directory belongs to the broker of these options.

    Args:
        found: what the directory says.
        options: who wants it.

    Raises:
        UsageError: it belongs to another.
    """
    found, now = found or Identity(), Identity.of(options)
    rows = (
        ("broker", found.broker_id, now.broker_id, "--broker-id"),
        ("cluster", found.cluster_name, now.cluster_name, "--cluster"),
        ("RocketMQ broker", found.broker_name, now.broker_name, "--broker-name"),
    )
    for kind, before, wanted, option in rows:
        if before is not None and wanted is not None and before != wanted:
            raise UsageError(
                f"The directory {options.directory} belongs to {kind} {before}, not to {wanted}.",
                hint=f"Start it with {option} {before}, or use another directory. If it shall be "
                f"{kind} {wanted} from now on, delete config/{IDENTITY_FILE} in it first.",
            )


def claim(found: Identity | None, options: NodeOptions, save: Callable[[bytes], None]) -> None:
    """Write down that a directory belongs to the broker of these options.

    Args:
        found: what the directory says.
        options: whose it is.
        save: replaces the file.

    Raises:
        StoreError: it cannot be written.
    """
    found, now = found or Identity(), Identity.of(options)
    new = Identity(
        found.broker_id if now.broker_id is None else now.broker_id,
        now.cluster_name or found.cluster_name,
        now.broker_name or found.broker_name,
    )
    if new != found:
        save(msgspec.json.encode(new))
