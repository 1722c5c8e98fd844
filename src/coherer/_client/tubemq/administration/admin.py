"""Administration of a TubeMQ cluster, Coherer's or Java's, over HTTP.

The master knows the topics, the brokers and their web ports, and the members of groups. Each broker
knows its offsets. A value that a broker did not send is None, never 0.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from coherer import _net as net
from coherer._client.engine.administration import Parts
from coherer._client.engine.arguments import checked
from coherer._client.tubemq.administration.brokers import BrokerAdmin
from coherer._client.tubemq.administration.calls import AUTHOR, AdminCalls, ClusterIdentity
from coherer._client.tubemq.administration.groups import GroupAdmin
from coherer._client.tubemq.administration.topics import TopicAdmin
from coherer._client.tubemq.administration.webapi import FORBIDDEN, OK, UNAUTHORIZED
from coherer._common.decoding import decoder
from coherer._common.node_status import NodeStatus
from coherer.errors import RefusedError

MOVED: Final[Mapping[str, str]] = {
    "alter_topic": "topics.alter",
    "create_topic": "topics.create",
    "delete_group": "groups.delete",
    "delete_topic": "topics.delete",
    "group_names": "groups.names",
    "groups_of": "topics.groups",
    "partitions": "topics.partitions",
    "partitions_of": "topics.partitions_of",
    "reset_offsets": "groups.reset_offsets",
    "set_offsets": "groups.set_offsets",
    "topic_names": "topics.names",
    "unread_ages": "groups.unread_ages",
    "unread_ages_of": "groups.unread_ages_of",
    "wait_usable": "topics.wait_usable",
}
"""The methods of 0.2, by name: the part and its method."""


@checked
class Admin(Parts):
    """Topics, groups and brokers of a cluster.

    Made by `Client.admin`, it belongs to the cluster of the client: it asks the master where its
    administration is, and before each change it verifies that the server there belongs to that
    cluster. Made with a URL alone, it uses any server at that URL.

    Args:
        url: the master's HTTP port, as `http://host:8080`; several, separated by commas, where
            there are several masters; None for the address that the cluster reports.
        token: the confModAuthToken of masters and brokers; only changes need it. None for the one
            that Java ships.
        tls: for https.
        user: recorded as the author of changes, and, with a password, the account.
        password: of the account, where the cluster has accounts. It is never sent, only used to
            sign.
        timeout_ms: for each call.
        cluster: the URL of the cluster, for errors.
        identify: asks the cluster for its identity; None if only `url` is known.
        check: raises when the client that made it cannot be used any more.

    ```python
    admin = Admin("http://127.0.0.1:8080")
    await admin.topics.create("orders", 8)
    for group in await admin.groups.list():
        print(group.name, group.lag)
    ```

    Methods raise `UnavailableError` when no server answers, `RefusedError` when one refuses, and
    `UsageError` when the server does not belong to the cluster; then nothing was changed.

    Attributes:
        topics: the topics.
        groups: the consumer groups, their members and offsets.
        brokers: the brokers.
    """

    _MOVED = MOVED

    def __init__(
        self,
        url: str | None,
        token: str | None = None,
        tls: net.TlsOptions | None = None,
        *,
        user: str = AUTHOR,
        password: str | None = None,
        timeout_ms: int = 10_000,
        cluster: str = "",
        identify: Callable[[], Awaitable[ClusterIdentity]] | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        self._calls = AdminCalls(
            url,
            token,
            tls,
            user=user,
            password=password,
            timeout_ms=timeout_ms,
            cluster=cluster,
            identify=identify,
            check=check,
        )
        self.topics: Final = TopicAdmin(self._calls)
        self.groups: Final = GroupAdmin(self._calls, self.topics)
        self.brokers: Final = BrokerAdmin(self._calls)

    def __repr__(self) -> str:
        return f"Admin({self._calls.server!r})"

    async def node_status(self) -> NodeStatus | None:
        """The status of the master, if it is a node of Coherer; None for other servers.

        Raises:
            RefusedError: the node requires an account.
        """
        status, body = await self._calls.page("/status")
        if status in (UNAUTHORIZED, FORBIDDEN):
            raise RefusedError(
                f"/status: HTTP {status}.",
                server=self._calls.server,
                code=status,
                hint="Give the name and password of an account.",
            )
        try:
            return decoder(NodeStatus).decode(body) if status == OK else None
        except msgspec.DecodeError:
            return None
