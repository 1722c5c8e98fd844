"""What a name server keeps for others (9.6), and its own settings (9.7)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from coherer import limits
from coherer._common.logs import Log
from coherer._rules.rocketmq.routes import KeyValueTable
from coherer._server.rocketmq.remoting import Refusal
from coherer._wire.rocketmq import settings as texts
from coherer._wire.rocketmq.bodies import KVTable
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import NULL
from coherer.errors import DamagedStoreError

_log = Log(logging.getLogger(__name__))

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""Namespace of the topics whose order is kept over all brokers."""

ORDER_ENABLE: Final = "orderMessageEnable"


class NameServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a name server behaves.

    Args:
        port: where it listens; only told to who asks for its settings.
        order_messages: whether routes tell what the namespace of ordered topics says about them.
        directory: of its files; only told.
    """

    port: int = 9876
    order_messages: bool = False
    directory: str = ""


class ConfigHandler:
    """The desk for 100, 101, 102, 219, 318 and 319.

    Args:
        options: what holds until it is changed.
        key_values: what is kept for others.
        saved: the file of changed settings.
        save_key_values: writes the file of what is kept for others.
        save: writes the file of changed settings.
    """

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
        if ORDER_ENABLE in before:  # the others say how it was started, and that is now
            self._values[ORDER_ENABLE] = before[ORDER_ENABLE]

    def order_of(self, topic: str) -> str | None:
        """What a route tells about the order of a topic."""
        if self._values[ORDER_ENABLE].lower() != "true":
            return None
        return self._key_values.get(ORDER_TOPICS, topic)

    def ordered(self) -> list[str] | None:
        """The topics that are ordered; None while nobody has said anything about order."""
        topics = self._key_values.namespace(ORDER_TOPICS)
        return None if topics is None else list(topics)

    def put(self, request: Command) -> Command:
        """100: set a value."""
        namespace, key = request.fields.get("namespace"), request.fields.get("key")
        if namespace is None or key is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "namespace or key is null")
        self._key_values.put(namespace, key, request.fields.get("value", ""))
        self._save_key_values()
        return Command(ResponseCode.SUCCESS)

    def get(self, request: Command) -> Command:
        """101: a value."""
        namespace, key = (request.fields.get(name, NULL) for name in ("namespace", "key"))
        value = self._key_values.get(namespace, key)
        if value is None:
            remark = f"No config item, Namespace: {namespace} Key: {key}"
            raise Refusal(ResponseCode.QUERY_NOT_FOUND, remark)
        return Command(ResponseCode.SUCCESS, fields={"value": value})

    def delete(self, request: Command) -> Command:
        """102: forget a value; one that is not there is forgotten, too."""
        fields = request.fields
        self._key_values.remove(fields.get("namespace", NULL), fields.get("key", NULL))
        self._save_key_values()
        return Command(ResponseCode.SUCCESS)

    def namespace(self, request: Command) -> Command:
        """219: all values of a namespace."""
        name = request.fields.get("namespace", NULL)
        values = self._key_values.namespace(name)
        if values is None:
            remark = f"No config item, Namespace: {name}"
            raise Refusal(ResponseCode.QUERY_NOT_FOUND, remark)
        return Command(ResponseCode.SUCCESS, body=KVTable(dict(values)).encode())

    def update(self, request: Command) -> Command:
        """318: change settings; unknown ones are passed over, as by Java."""
        if len(request.body) > limits.SETTINGS_BYTES_MAX:
            remark = f"settings of more than {limits.SETTINGS_BYTES_MAX} bytes are not read"
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
        try:
            given = texts.parse(str(request.body, "utf-8", "replace"))
        except ValueError as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "string2Properties error") from error
        self._values.update((k, v) for k, v in given.items() if k in self._values)
        self._save(texts.compose_file(self._values).encode())
        return Command(ResponseCode.SUCCESS)

    def show(self, request: Command) -> Command:  # noqa: ARG002 - a handler
        """319: all settings."""
        return Command(ResponseCode.SUCCESS, body=texts.compose(self._values).encode())


def _read(saved: bytes) -> dict[str, str]:
    try:
        return texts.parse_file("namesrv.properties", saved)
    except DamagedStoreError as error:
        _log.warning("The settings of the start hold: %s", error)
        return {}


def _text(value: bool) -> str:
    return "true" if value else "false"
