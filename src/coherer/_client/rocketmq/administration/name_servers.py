"""Administration of name servers (docs/protocol/rocketmq.md, section 12)."""

from __future__ import annotations

from collections.abc import Mapping

from coherer._client.engine.arguments import checked
from coherer._client.rocketmq.administration.servers import Part, settings
from coherer._wire.rocketmq import java_properties
from coherer._wire.rocketmq.bodies import KVTable
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.headers import KvHeader, NamespaceHeader, PutKvHeader


@checked
class NameServerAdmin(Part):
    """The name servers of a cluster: `admin.name_servers`."""

    async def config(self) -> dict[str, str]:
        """The settings of a name server."""
        await self._instance.start()
        answer = await self._instance.names.ask(RequestCode.GET_NAMESRV_CONFIG)
        return settings(answer.body)

    async def set_config(self, changes: Mapping[str, str]) -> None:
        """Change settings of all name servers."""
        await self._instance.start()
        body = java_properties.compose(changes).encode()
        await self._instance.names.ask_all(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)

    async def values(self, namespace: str) -> dict[str, str]:
        """The configuration values in a namespace of the name servers.

        Raises:
            RefusedError: the namespace does not exist; code 22.
        """
        await self._instance.start()
        fields = NamespaceHeader(namespace).fields()
        answer = await self._instance.names.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, fields)
        return dict(KVTable.decode(answer.body).table)

    async def set_value(self, namespace: str, key: str, value: str | None) -> None:
        """Set a configuration value at all name servers, or delete it with None."""
        await self._instance.start()
        names = self._instance.names
        if value is None:
            await names.ask_all(RequestCode.DELETE_KV_CONFIG, KvHeader(namespace, key).fields())
        else:
            fields = PutKvHeader(namespace, key, value).fields()
            await names.ask_all(RequestCode.PUT_KV_CONFIG, fields)
