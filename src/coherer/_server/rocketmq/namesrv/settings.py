"""The name server's key-value configuration and its own settings.

See docs/protocol/rocketmq.md, sections 9.6 and 9.7.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from coherer._common.logs import Log
from coherer._rules.rocketmq.routes import KeyValueTable
from coherer._server.rocketmq.remoting import Refusal, settings_in
from coherer._wire.rocketmq import java_properties as texts
from coherer._wire.rocketmq.bodies import KVTable
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import NULL
from coherer.errors import DamagedStoreError

_log = Log(logging.getLogger(__name__))

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""The namespace of globally ordered topics."""

ORDER_ENABLE: Final = "orderMessageEnable"


class NameServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a name server.

    Args:
        port: its port; only shown in its settings.
        order_messages: whether routes contain the order configuration of ordered topics.
        directory: of its files; only shown.
    """

    port: int = 9876
    order_messages: bool = False
    directory: str = ""


class ConfigHandler:
    """Codes 100, 101, 102, 219, 318 and 319: key-value configuration and settings."""

    def __init__(
        self,
        options: NameServerOptions,
        key_values: KeyValueTable,
        saved: bytes | None,
        save_key_values: Callable[[], None],
        save: Callable[[bytes], None],
    ) -> None:
        self._key_values = key_values
        self._save_key_values = save_key_values
        self._save = save
        self._values = {
            "kvConfigPath": f"{options.directory}/kvConfig.json",
            "configStorePath": f"{options.directory}/namesrv.properties",
            "productEnvName": "center",
            "clusterTest": "false",
            ORDER_ENABLE: _text(options.order_messages),
            "listenPort": str(options.port),
        }
        before = _read(saved or b"")
        if ORDER_ENABLE in before:  # the other settings come from the options of this start
            self._values[ORDER_ENABLE] = before[ORDER_ENABLE]

    def order_of(self, topic: str) -> str | None:
        """The order configuration of a topic in its route."""
        if self._values[ORDER_ENABLE].lower() != "true":
            return None
        return self._key_values.get(ORDER_TOPICS, topic)

    def ordered(self) -> list[str] | None:
        """The ordered topics; None while none are configured."""
        topics = self._key_values.namespace(ORDER_TOPICS)
        return None if topics is None else list(topics)

    def put(self, request: Command) -> Command:
        """PUT_KV_CONFIG (100): set a value."""
        namespace, key = request.fields.get("namespace"), request.fields.get("key")
        if namespace is None or key is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "namespace or key is null")
        self._key_values.put(namespace, key, request.fields.get("value", ""))
        self._save_key_values()
        return Command(ResponseCode.SUCCESS)

    def get(self, request: Command) -> Command:
        """GET_KV_CONFIG (101): get a value."""
        namespace, key = (request.fields.get(name, NULL) for name in ("namespace", "key"))
        value = self._key_values.get(namespace, key)
        if value is None:
            remark = f"No config item, Namespace: {namespace} Key: {key}"
            raise Refusal(ResponseCode.QUERY_NOT_FOUND, remark)
        return Command(ResponseCode.SUCCESS, fields={"value": value})

    def delete(self, request: Command) -> Command:
        """DELETE_KV_CONFIG (102): succeeds even if there is no such value."""
        fields = request.fields
        self._key_values.remove(fields.get("namespace", NULL), fields.get("key", NULL))
        self._save_key_values()
        return Command(ResponseCode.SUCCESS)

    def namespace(self, request: Command) -> Command:
        """GET_KVLIST_BY_NAMESPACE (219): all values of a namespace."""
        name = request.fields.get("namespace", NULL)
        values = self._key_values.namespace(name)
        if values is None:
            remark = f"No config item, Namespace: {name}"
            raise Refusal(ResponseCode.QUERY_NOT_FOUND, remark)
        return Command(ResponseCode.SUCCESS, body=KVTable(dict(values)).encode())

    def update(self, request: Command) -> Command:
        """UPDATE_NAMESRV_CONFIG (318): change settings; as in Java, unknown ones are ignored."""
        given = settings_in(request)
        self._values.update((k, v) for k, v in given.items() if k in self._values)
        self._save(texts.compose_file(self._values).encode())
        return Command(ResponseCode.SUCCESS)

    def show(self, request: Command) -> Command:  # noqa: ARG002 - a handler
        """GET_NAMESRV_CONFIG (319): all settings."""
        return Command(ResponseCode.SUCCESS, body=texts.compose(self._values).encode())


def _read(saved: bytes) -> dict[str, str]:
    try:
        return texts.parse_file("namesrv.properties", saved)
    except DamagedStoreError as error:
        _log.warning("The saved settings were ignored: %s", error)
        return {}


def _text(value: bool) -> str:
    return "true" if value else "false"
