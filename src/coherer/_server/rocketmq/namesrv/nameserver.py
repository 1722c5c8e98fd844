"""A name server without its sockets: parts, table of codes, beat (sections 2.15 and 9).

A code that it does not know gets no answer at all, as from Java's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from coherer._common.clock import IntervalTimer
from coherer._common.logs import Log
from coherer._net import Connection, Receiver
from coherer._rules.rocketmq.routes import KeyValueTable, RouteTable
from coherer._server.core.saving import Saver
from coherer._server.rocketmq.namesrv.lookups import Lookups
from coherer._server.rocketmq.namesrv.registry import Registry
from coherer._server.rocketmq.namesrv.settings import NameServerOptions, Settings
from coherer._server.rocketmq.remoting import Channel, Handler, Remoting, of_anyone
from coherer._wire.rocketmq import settings as texts
from coherer._wire.rocketmq.codes import RequestCode as Code
from coherer._wire.rocketmq.command import Command

if TYPE_CHECKING:  # what reads its files takes its time to load, and few need it
    from coherer._server.rocketmq.acl import Access

_log = Log(logging.getLogger(__name__))

KEY_VALUE_FILE: Final = "kvConfig.json"
SETTINGS_FILE: Final = "namesrv.properties"
CHECKS: Final[dict[str, Callable[[bytes], object]]] = {
    KEY_VALUE_FILE: KeyValueTable.load,
    SETTINGS_FILE: partial(texts.parse_file, SETTINGS_FILE),
}
"""What raises where the content of a file is not what it should be."""

SCAN_MS: Final = 10_000
"""How often silent brokers and connections are looked for."""


class NameServer:
    """Answers brokers and clients: `net.listen(host, port, name_server.make)`.

    Args:
        options: how it behaves.
        load: gives the content of a file of its own; None if there is none.
        files: writes it.
        now_ms: a clock that is not set.
        access: the accounts whose requests are answered; None for everybody's. Changes need an
            account that is an administrator.

    Attributes:
        routes: which brokers and topics there are.
        settings: what it keeps for others, and its own.
        handlers: by request code.
    """

    def __init__(
        self,
        options: NameServerOptions,
        load: Callable[[str], bytes | None],
        files: Saver,
        *,
        now_ms: Callable[[], int],
        access: Access | None = None,
    ) -> None:
        self.routes = RouteTable()
        key_values = _key_values(load(KEY_VALUE_FILE))
        self.settings = settings = Settings(
            options,
            key_values,
            load(SETTINGS_FILE),
            lambda: files.save(KEY_VALUE_FILE, key_values.dump),
            lambda data: files.save(SETTINGS_FILE, lambda: data),
        )
        registry = Registry(self.routes, key_values, now_ms)
        lookups = Lookups(self.routes, settings)
        anyone: dict[int, Callable[[Command], Command]] = {
            Code.PUT_KV_CONFIG: settings.put,
            Code.GET_KV_CONFIG: settings.get,
            Code.DELETE_KV_CONFIG: settings.delete,
            Code.GET_KVLIST_BY_NAMESPACE: settings.namespace,
            Code.UPDATE_NAMESRV_CONFIG: settings.update,
            Code.GET_NAMESRV_CONFIG: settings.show,
            Code.UNREGISTER_BROKER: registry.unregister,
            Code.QUERY_DATA_VERSION: registry.data_version,
            Code.WIPE_WRITE_PERM_OF_BROKER: registry.wipe_write,
            Code.ADD_WRITE_PERM_OF_BROKER: registry.add_write,
            Code.GET_ROUTEINFO_BY_TOPIC: lookups.route,
            Code.GET_BROKER_CLUSTER_INFO: lookups.clusters,
            Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: lookups.topics,
            Code.GET_TOPICS_BY_CLUSTER: lookups.topics_of_cluster,
            Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: lookups.system_topics,
            Code.GET_UNIT_TOPIC_LIST: lookups.unit_topics,
            Code.GET_HAS_UNIT_SUB_TOPIC_LIST: lookups.unit_sub_topics,
            Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: lookups.unit_sub_only_topics,
            Code.DELETE_TOPIC_IN_NAMESRV: lookups.delete_topic,
        }
        self.handlers: dict[int, Handler] = {
            Code.REGISTER_BROKER: registry.register,
            **{code: of_anyone(handler) for code, handler in anyone.items()},
        }
        self._access = access
        self._remoting = Remoting(
            self.handlers,
            closed=self._closed,
            check=None if access is None else access.check,
            files=files,
            silent=True,
            now_ms=now_ms,
        )
        self._now_ms = now_ms
        self._scan = IntervalTimer(SCAN_MS, now_ms())

    def make(self, connection: Connection) -> Receiver:
        """The receiver of a new connection."""
        return self._remoting.make(connection)

    def tick(self) -> None:
        """Take out who is silent; call it every second or so."""
        now_ms = self._now_ms()
        if self._access is not None:
            self._access.tick(now_ms)
        if not self._scan.is_due(now_ms):
            return
        self._remoting.tick()
        for link in self.routes.expire(now_ms):
            if isinstance(link, Channel):
                _log.warning("The broker behind %s is silent; it is taken out", link.peer)
                link.close()

    def _closed(self, channel: Channel) -> None:
        self.routes.lost(channel, channel.peer)


def _key_values(data: bytes | None) -> KeyValueTable:
    try:
        return KeyValueTable() if data is None else KeyValueTable.load(data)
    except msgspec.DecodeError as error:
        _log.plain.warning("%s cannot be read, and starts anew: %s", KEY_VALUE_FILE, error)
        return KeyValueTable()
