"""A node logs once when an operator moves a group to other offsets."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import coherer
from coherer import rocketmq, tubemq
from coherer._server.node.node import Node
from coherer.message import Message
from tests.server.node_harness import options


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "was moved" in text]


async def filled(node: Node) -> None:
    node.create_topic("flights", 2)
    async with coherer.connect(node.url) as client, client.producer("flights") as producer:
        await producer.send_many(Message("flights", b"x") for _ in range(4))


async def test_over_tubemq(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with Node(options(tmp_path / "node", admin_port=0)) as node:
        await filled(node)
        async with tubemq.connect(node.url) as client:
            for to in ("latest", "earliest", "earliest"):
                await client.admin().groups.reset_offsets("g", "flights", to)
    first = "Group g was moved in topic flights: partition 0 from no offset to 2"
    assert said(caplog) == [
        f"{first}, 1 from no offset to 2",
        "Group g was moved in topic flights: partition 0 from 2 to 0, 1 from 2 to 0",
    ]


async def test_over_rocketmq(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with Node(options(tmp_path / "node")) as node:
        await filled(node)
        async with rocketmq.connect(node.rocketmq_url) as client:
            await client.admin().groups.reset_offsets("g", "flights", "latest")
            moved = "Group g, which has no members, was moved in topic flights, queue"
            assert said(caplog) == [f"{moved} {number}, from -1 to 2" for number in range(2)]
            caplog.clear()
            async with client.consumer("g", "flights") as consumer:
                await consumer.wait_assigned()
                await client.admin().groups.reset_offsets("g", "flights", "earliest")
    text = "Group g was moved in topic flights: partition 0 from 2 to 0, 1 from 2 to 0"
    assert said(caplog) == [text]
