"""Routes, and the registration of brokers (docs/protocol/rocketmq.md, sections 2.15 and 9)."""

from __future__ import annotations

import zlib
from struct import Struct as Layout
from typing import Annotated, Final

from msgspec import field

from coherer._wire.rocketmq import fastjson
from coherer._wire.rocketmq.bodies.base import Body, DataVersion, enum_names
from coherer.errors import ProtocolError
from coherer.limits import REMOTING_BYTES_MAX

_INT: Final = Layout(">i")
_FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")

FilterType = Annotated[str, enum_names(*_FILTER_TYPES)]
_CRC_MASK: Final = 0x7FFFFFFF


class QueueData(Body, frozen=True):
    """A topic's queues on one broker."""

    broker_name: str = ""
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0
    topic_sys_flag: int = 0


class BrokerData(Body, frozen=True):
    """The addresses of a broker by id; id 0 is the master.

    `enable_acting_master` is of RocketMQ 5: a slave takes messages while there is no master.
    """

    cluster: str | None = None
    broker_name: str = ""
    broker_addrs: dict[int, str] = field(default_factory=dict[int, str])
    enable_acting_master: bool | None = None


class TopicRoute(Body, frozen=True):
    """The answer to 105: the route of a topic."""

    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = field(default_factory=list[QueueData])
    broker_datas: list[BrokerData] = field(default_factory=list[BrokerData])
    filter_server_table: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def encode_standard(self) -> bytes:
        """Return the body as standard JSON, which Java from 4.9.4 on writes for newer clients."""
        return fastjson.dumps(self, text_keys=True)


class ClusterInfo(Body, frozen=True):
    """The answer to 106: brokers by name, and their names by cluster."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict[str, BrokerData])
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict[str, list[str]])


class TopicList(Body, frozen=True):
    """The answer to 206, 224, 304, 305, 311, 312 and 313."""

    broker_addr: str | None = None
    topic_list: list[str] = field(default_factory=list[str])


class KVTable(Body, frozen=True, kw_only=False):
    """The answer to 28, 103 and 219: names and values."""

    table: dict[str, str] = field(default_factory=dict[str, str])


class TopicConfig(Body, frozen=True):
    """A topic on a broker.

    `tubemq` is Coherer's own: in a registration, whether the topic is one of a TubeMQ master.
    """

    topic_name: str = ""
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: FilterType | None = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    tubemq: bool | None = None


class TopicConfigs(Body, frozen=True):
    """The answer to 21: all topics of a broker (Java: TopicConfigSerializeWrapper)."""

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict[str, TopicConfig])
    data_version: DataVersion = DataVersion()


class RegisterBody(Body, frozen=True):
    """REGISTER_BROKER (103): a broker's topics and filter servers (Java: RegisterBrokerBody)."""

    topic_config_serialize_wrapper: TopicConfigs = TopicConfigs()
    filter_server_list: list[str] | None = field(default_factory=list[str])

    def compressed(self) -> bytes:
        """Return the compressed form, which omits the topics' system flags and order."""
        topics = self.topic_config_serialize_wrapper
        pieces = [_sized(topics.data_version.encode()), _INT.pack(len(topics.topic_config_table))]
        pieces += [
            _sized(fastjson.utf8(_topic_text(topic)))
            for topic in topics.topic_config_table.values()
        ]
        pieces.append(_sized(fastjson.dumps(self.filter_server_list or [])))
        return zlib.compress(b"".join(pieces), 9)

    @classmethod
    def read(cls, data: bytes | memoryview, *, compressed: bool) -> RegisterBody:
        """Decode either form.

        Raises:
            ProtocolError: the body is not valid.
        """
        if not compressed:
            return cls.decode(data)
        return _read_compressed(data)


def crc(body: bytes | memoryview) -> int:
    """Return the checksum of a registration."""
    return zlib.crc32(body) & _CRC_MASK


def _topic_text(topic: TopicConfig) -> str:
    return (
        f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} "
        f"{topic.perm} {topic.topic_filter_type}"
    )


def _sized(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _read_compressed(data: bytes | memoryview) -> RegisterBody:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, REMOTING_BYTES_MAX)
    except zlib.error as error:
        raise ProtocolError(f"A registration cannot be decompressed: {error}.") from error
    if inflater.unconsumed_tail:
        raise ProtocolError(f"A registration has more than {REMOTING_BYTES_MAX} bytes.")
    try:
        return _read_pieces(plain)
    except (IndexError, ValueError) as error:
        raise ProtocolError(f"A registration is truncated or invalid: {error}.") from error


def _read_pieces(plain: bytes) -> RegisterBody:
    version, position = _piece(plain, 0)
    (count,) = _INT.unpack(_exactly(plain, position, _INT.size))
    position += _INT.size
    topics: dict[str, TopicConfig] = {}
    for _ in range(count):
        text, position = _piece(plain, position)
        topic = _topic(str(text, "utf-8", "replace"))
        topics[topic.topic_name] = topic
    servers, position = _piece(plain, position)
    wrapper = TopicConfigs(data_version=DataVersion.decode(version), topic_config_table=topics)
    found = fastjson.loads(servers)
    names = [fastjson.to_text(name) for name in found] if isinstance(found, list) else None
    return RegisterBody(topic_config_serialize_wrapper=wrapper, filter_server_list=names)


def _topic(text: str) -> TopicConfig:
    name, read, write, perm, kind = text.split(" ")
    if kind not in _FILTER_TYPES:
        raise ValueError(kind)
    return TopicConfig(
        topic_name=name,
        read_queue_nums=int(read),
        write_queue_nums=int(write),
        perm=int(perm),
        topic_filter_type=kind,
    )


def _piece(data: bytes, position: int) -> tuple[bytes, int]:
    (size,) = _INT.unpack(_exactly(data, position, _INT.size))
    start = position + _INT.size
    return _exactly(data, start, size), start + size


def _exactly(data: bytes, start: int, size: int) -> bytes:
    if not 0 <= size <= len(data) - start:
        raise IndexError(start)
    return data[start : start + size]
