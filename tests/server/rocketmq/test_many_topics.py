"""Many topics made at once: what is answered is in the file, which is not written for each."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from node_stage import options
from rocket_stage import send_fields
from rocketmq_caller import Caller

from coherer.broker.topics import TopicTable
from coherer.rocketmq.codes import RequestCode as Code
from coherer.server.node import Node
from coherer.store import Store

TOPICS = 40
NEW = {
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}


@pytest.mark.parametrize("code", [Code.UPDATE_AND_CREATE_TOPIC, Code.SEND_MESSAGE_V2])
async def test_topics_that_are_acknowledged_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: Code
) -> None:
    saved: list[bytes] = []
    save = Store.save_config

    def watched(store: Store, name: str, data: bytes) -> None:
        save(store, name, data)
        if name == "topics.json":
            saved.append(data)

    names = [f"topic-{number}" for number in range(TOPICS)]
    async with Node(options(tmp_path)) as node:
        caller = await Caller.dial(node.rocketmq_port)
        await caller.ask(Code.GET_BROKER_RUNTIME_INFO)
        monkeypatch.setattr(Store, "save_config", watched)

        async def make(name: str) -> int:
            fields = {**NEW, "topic": name} if code == 17 else send_fields(b=name)
            answer = await caller.begin(code, fields, b"hello")
            assert name in TopicTable.load(saved[-1])
            return answer.code

        async with asyncio.timeout(20):
            assert await asyncio.gather(*map(make, names)) == [0] * TOPICS
        assert len(saved) < TOPICS / 4
        assert (tmp_path / "config/topics.json").read_bytes() == saved[-1]
        for name in names[:2]:
            fields = {"topic": name}
            assert (await caller.ask(Code.GET_MAX_OFFSET, {**fields, "queueId": "0"})).code == 0
