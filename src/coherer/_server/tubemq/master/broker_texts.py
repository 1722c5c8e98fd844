"""What a broker should hold, as the texts that it is sent (2.5.9, 2.5.10 and 7.8.3)."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeVar

import msgspec

from coherer import limits
from coherer._rules.tubemq.records import BrokerRecord, Deployment, TopicProps, TopicStatus
from coherer._rules.tubemq.registry import Hosted
from coherer._server.tubemq.master.state import MasterState
from coherer._server.tubemq.refusal import Refusal
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.settings import BrokerDefaults, TopicSettings
from coherer.errors import ProtocolError

T = TypeVar("T")


class Configuration(msgspec.Struct, frozen=True):
    """What a broker should hold.

    Args:
        id: raised by every change.
        check_sum: over the texts.
        defaults: the broker's defaults.
        topics: its topics, in order of their texts.
        removing: topics that it should remove.
        hosted: what that means for its topics.
    """

    id: int
    check_sum: int
    defaults: str
    topics: tuple[str, ...]
    removing: tuple[str, ...]
    hosted: dict[str, Hosted]

    @property
    def key(self) -> tuple[int, int]:
        """What a broker repeats."""
        return self.id, self.check_sum


class Configurations:
    """The configurations of all brokers, made anew when the catalog changes.

    Args:
        state: the master's state.
    """

    def __init__(self, state: MasterState) -> None:
        self._state = state
        self._made_for: dict[int, Configuration] = {}
        self._version = -1

    def of(self, broker: int) -> Configuration:
        """The broker's configuration; its id is raised whenever its texts change.

        Raises:
            CatalogError: it has no record.
        """
        catalog = self._state.catalog
        if self._version != catalog.version:
            self._version = catalog.version
            for known in [known for known in self._made_for if known in catalog.brokers]:
                self._made_for[known] = self._made(known, self._made_for[known])
        found = self._made_for.get(broker)
        if found is None:
            found = self._made_for[broker] = self._made(broker, None)
        return found

    def _made(self, broker: int, before: Configuration | None) -> Configuration:
        catalog = self._state.catalog
        record = catalog.broker(broker)
        deployments = catalog.topics_of(broker)
        staying = [d for d in deployments if d.status < TopicStatus.REMOVING]
        leaving = [d for d in deployments if d.status >= TopicStatus.REMOVING]
        defaults = _defaults(record.props).text()
        topics = tuple(sorted(self._text(record, deployment) for deployment in staying))
        removing = tuple(sorted(self._text(record, deployment) for deployment in leaving))
        if before is not None and (defaults, topics) == (before.defaults, before.topics):
            if removing == before.removing:
                return before
            return msgspec.structs.replace(before, removing=removing)
        return Configuration(
            id=self._state.new_id(),
            check_sum=check_sum(defaults, topics),
            defaults=defaults,
            topics=topics,
            removing=removing,
            hosted=read_hosted(defaults, topics),
        )

    def _text(self, record: BrokerRecord, deployment: Deployment) -> str:
        limit = self._state.catalog.message_bytes_max(deployment.topic)
        if limit == self._state.catalog.cluster.message_bytes_max:
            limit = None
        return _topic_text(record.props, deployment, limit)


# With every change all texts of a broker are made, sent and read again; nearly all are the same.


@lru_cache(limits.TOPICS_MAX)
def _topic_text(broker: TopicProps, deployment: Deployment, message_bytes_max: int | None) -> str:
    usual = msgspec.structs.asdict(_defaults(broker))
    own = msgspec.structs.asdict(_defaults(deployment.props))
    return TopicSettings(
        topic=deployment.topic,
        status=int(deployment.status),
        max_message_bytes=message_bytes_max,
        **{name: value for name, value in own.items() if value != usual[name]},
    ).text()


@lru_cache(limits.TOPICS_MAX)
def _hosted(topic_text: str, defaults_text: str) -> tuple[str, Hosted] | None:
    topic, defaults = TopicSettings.parse(topic_text), BrokerDefaults.parse(defaults_text)
    if topic.status:
        return None
    return topic.topic, Hosted(
        partitions=_or(topic.partitions, defaults.partitions),
        stores=_or(topic.stores, defaults.stores),
        publish=_or(topic.accept_publish, defaults.accept_publish),
        subscribe=_or(topic.accept_subscribe, defaults.accept_subscribe),
    )


def check_sum(defaults: str, topics: Iterable[str]) -> int:
    """Java's check sum: CRC-32 without its highest bit, over the texts and as many zeros again.

    >>> check_sum(
    ...     "1:true:true:1000:10000: :delete,168h:1:0:3:10:20000",
    ...     ["__offset_history__:10: : : : : : : :0: : : : : ", "demo:3: : : : : : :2:0: : : : : "],
    ... )
    2044385142
    """
    text = defaults + "".join(sorted(topics))
    return zlib.crc32(text.encode().ljust(2 * len(text), b"\0")) & 0x7FFFFFFF


def _defaults(props: TopicProps) -> BrokerDefaults:
    return BrokerDefaults(
        partitions=props.partitions,
        accept_publish=props.accept_publish,
        accept_subscribe=props.accept_subscribe,
        unflush_threshold=props.unflush_messages,
        unflush_interval_ms=props.unflush_ms,
        delete_policy=props.delete_policy,
        stores=props.stores,
        unflush_data_hold_bytes=props.unflush_hold,
        cache_megabytes=props.cache_mb,
        cache_thousands=props.cache_k,
        cache_flush_interval_ms=props.cache_flush_ms,
    )


def read_hosted(defaults_text: str, topic_texts: Iterable[str]) -> dict[str, Hosted]:
    """What a broker's texts mean for its topics.

    Raises:
        Refusal: 400, they cannot be read.
    """
    if not defaults_text.strip():
        return {}
    try:
        BrokerDefaults.parse(defaults_text)
        return dict(filter(None, (_hosted(text, defaults_text) for text in topic_texts)))
    except ProtocolError as error:
        raise Refusal(ResultCode.BAD_REQUEST, error.text) from None


def _or(own: T | None, usual: T) -> T:
    return usual if own is None else own
