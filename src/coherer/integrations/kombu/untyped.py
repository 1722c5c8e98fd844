"""What the plug takes from kombu, which declares no types; the published stubs differ from it."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from importlib import import_module
from typing import Any

_virtual: Any = import_module("kombu.transport.virtual")
_base: Any = import_module("kombu.transport.base")
_json: Any = import_module("kombu.utils.json")

VirtualQoS: Any = _virtual.QoS
VirtualChannel: Any = _virtual.Channel
VirtualTransport: Any = _virtual.Transport

transports: MutableMapping[str, str] = import_module("kombu.transport").TRANSPORT_ALIASES
"""The class of each URL scheme."""

ChannelError: Callable[..., Exception] = import_module("kombu.exceptions").ChannelError
DeclareOk: Callable[[str, int, int], Any] = import_module("amqp.protocol").queue_declare_ok_t

queue_arguments: Callable[..., dict[str, Any]] = _base.to_rabbitmq_queue_arguments

dumps: Callable[[object], str] = _json.dumps
loads: Callable[[bytes], Any] = _json.loads
