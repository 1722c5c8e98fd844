"""The identity of the broker that owns a directory: the file `config/identity.json`.

If a directory were started as another broker, it would serve its messages under the wrong name, and
consumers would read them with the offsets of the other broker. So the first start records the
broker's identity, and a later start with another identity is refused.

A directory of a Java broker has no such file: the first start here creates it, and Java's broker
ignores it. The role is not part of the identity: a slave may become the master.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from coherer._common.decoding import decoder
from coherer._server.options.node import NodeOptions
from coherer.errors import DamagedStoreError, UsageError

IDENTITY_FILE = "identity.json"


class Identity(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A broker's identity; None means unknown.

    Args:
        broker_id: its id at TubeMQ's masters.
        cluster_name: its cluster at RocketMQ's name servers.
        broker_name: its name at RocketMQ's name servers.
    """

    broker_id: int | None = None
    cluster_name: str | None = None
    broker_name: str | None = None

    @classmethod
    def of(cls, options: NodeOptions) -> Identity:
        """The identity of a node with these options."""
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
            DamagedStoreError: it is invalid.
        """
        try:
            return decoder(cls).decode(data)
        except msgspec.DecodeError as error:
            raise DamagedStoreError(f"{IDENTITY_FILE} cannot be read: {error}.") from error


def check_owner(found: Identity | None, options: NodeOptions) -> None:
    """Check that a directory belongs to the broker of these options.

    Raises:
        UsageError: it belongs to another broker.
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
                hint=f"Start it with {option} {before}, or use another directory. To turn it into "
                f"{kind} {wanted}, delete config/{IDENTITY_FILE} and its .bak in it first.",
            )


def claim(found: Identity | None, options: NodeOptions, save: Callable[[bytes], None]) -> None:
    """Record that a directory belongs to the broker of these options.

    Args:
        save: replaces the file.

    Raises:
        StoreError: it could not be written.
    """
    found, now = found or Identity(), Identity.of(options)
    new = Identity(
        found.broker_id if now.broker_id is None else now.broker_id,
        now.cluster_name or found.cluster_name,
        now.broker_name or found.broker_name,
    )
    if new != found:
        save(msgspec.json.encode(new))
