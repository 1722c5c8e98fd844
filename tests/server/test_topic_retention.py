"""Retention of single topics in a node: options, and what clients of both protocols see."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from coherer._server.options.node import NodeOptions
from coherer.blocking import connect
from coherer.errors import UsageError
from coherer.message import Message
from coherer.testing import embedded_node


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_consumers_begin_behind_what_is_hidden(tmp_path: Path, protocol: str) -> None:
    with embedded_node(tmp_path, topic_retention={"short": "2KiB"}) as node:
        node.create_topic("short", 1)
        node.create_topic("long", 1)
        url = node.url if protocol == "tubemq" else node.rocketmq_url
        with connect(url) as client:
            with client.producer() as producer:
                for number in range(100):
                    for topic in ("short", "long"):
                        producer.send(Message(topic, b"%d" % number))
            core = node.node.core
            assert core is not None
            node.call(lambda: core.hide_expired(node.node.options.topic_limits))
            for topic, first in (("short", None), ("long", b"0")):
                with client.consumer(f"g-{topic}", topic, start="earliest") as consumer:
                    batch = consumer.receive(30_000)
                    assert batch
                    body = next(iter(batch)).body
                    assert body == first if first is not None else int(body) > 50
        # Options that change on SIGHUP.
        options = msgspec.structs.replace(node.node.options, topic_retention={"long": "1KiB"})
        assert node.call(lambda: node.node.change(options)) == []
        node.call(lambda: core.hide_expired(node.node.options.topic_limits))
        assert node.call(lambda: core.store.queue_range("long", 0))[0] > 50


def test_a_topic_keeps_no_more_than_the_log() -> None:
    with pytest.raises(UsageError, match="more than the log keeps"):
        NodeOptions(directory=Path("data"), topic_retention={"t": "4d"})
    with pytest.raises(UsageError, match="more than the log keeps"):
        NodeOptions(directory=Path("data"), retention_bytes=8 << 30, topic_retention={"t": "10GiB"})
    with pytest.raises(UsageError, match="Write a time"):
        NodeOptions(directory=Path("data"), topic_retention={"t": "soon"})
    NodeOptions(directory=Path("data"), retention_hours=None, topic_retention={"t": "400d"})
