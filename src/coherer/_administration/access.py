"""The arguments that stand for a cluster in this package: a client and its administration."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from coherer._common.urls import is_rocketmq
from coherer._wire.rocketmq.names import Queue
from coherer._wire.tubemq.names import Partition
from coherer.errors import UsageError

# A command loads the client of one protocol, which takes 0.1 s less than both.
if TYPE_CHECKING:
    from coherer.rocketmq import Admin as RocketAdmin
    from coherer.rocketmq import Client as RocketClient
    from coherer.tubemq import Admin as TubeAdmin
    from coherer.tubemq import Client as TubeClient


class RocketCluster(msgspec.Struct, frozen=True, eq=False):
    """A RocketMQ cluster: its URL, for errors, an open client, and its administration."""

    url: str
    client: RocketClient
    admin: RocketAdmin

    @property
    def namespace(self) -> str:
        """The namespace of the client; "" without one."""
        return self.client.options.namespace


class TubeCluster(msgspec.Struct, frozen=True, eq=False):
    """A TubeMQ cluster: its URL, for errors, an open client, and its administration over HTTP."""

    url: str
    client: TubeClient
    admin: TubeAdmin


Cluster: TypeAlias = RocketCluster | TubeCluster

AnyPartition: TypeAlias = Queue | Partition
"""A partition or queue, as the client of its protocol names it."""


@asynccontextmanager
async def opened(
    url: str,
    *,
    user: str | None = None,
    password: str | None = None,
    admin: str | None = None,
    token: str | None = None,
) -> AsyncGenerator[Cluster]:
    """Connect to a cluster, and close the connections at the end.

    Args:
        url: `rocketmq://host:port` or `tubemq://host:port`, in any form that `connect` accepts.
        user: the account; RocketMQ's access key.
        password: its password; RocketMQ's secret key.
        admin: TubeMQ: the HTTP administration of the master, unless the master reports it.
        token: TubeMQ: the token for changes.

    Raises:
        UsageError: the URL has another form.

    ```python
    async with opened("rocketmq://127.0.0.1:9876") as cluster:
        for queue in await dead_letters.queues(cluster):
            print(queue.group, queue.count)
    ```
    """
    if is_rocketmq(url):
        from coherer.rocketmq import connect as connect_rocketmq  # one protocol, see above

        async with connect_rocketmq(url, user=user, password=password) as rocket:
            yield RocketCluster(url, rocket, rocket.admin())
        return
    from coherer.tubemq import connect as connect_tubemq  # one protocol, see above

    if admin is None:
        client = connect_tubemq(url, user=user, password=password)
    else:
        client = connect_tubemq(url, user=user, password=password, admin=admin)
    async with client as tube:
        yield TubeCluster(url, tube, tube.admin(token))


def rocketmq_only(cluster: Cluster, what: str) -> RocketCluster:
    """Return the cluster if it is a RocketMQ cluster.

    Raises:
        UsageError: it is a TubeMQ cluster, which lacks the feature `what`, such as `dead letters`.
    """
    if isinstance(cluster, RocketCluster):
        return cluster
    raise UsageError(
        f"TubeMQ has no {what}.",
        server=cluster.url,
        hint="A Coherer node keeps the messages of both protocols: give the URL of its RocketMQ "
        "port, rocketmq://host:port.",
    )
