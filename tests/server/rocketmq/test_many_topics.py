"""Creating many topics at once: acknowledged topics are saved, without a write for each."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from coherer._rules.common.topics import TopicTable
from coherer._server.node.node import Node
from coherer._store import Store
from coherer._store.config_files import unsealed
from coherer._wire.rocketmq.codes import RequestCode as Code
from tests.server.node_harness import options
from tests.server.rocket_harness import send_fields
from tests.server.rocketmq_caller import Caller

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
        assert unsealed((tmp_path / "config/topics.json").read_bytes()) == saved[-1]
        for name in names[:2]:
            fields = {"topic": name}
            assert (await caller.ask(Code.GET_MAX_OFFSET, {**fields, "queueId": "0"})).code == 0


async def test_sends_are_answered_while_a_new_topic_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, busy, save = threading.Event(), threading.Event(), Store.save_config

    def slow(store: Store, name: str, data: bytes) -> None:
        busy.set()
        assert free.wait(20)
        save(store, name, data)

    async with Node(options(tmp_path)) as node:
        one, other = [await Caller.dial(node.rocketmq_port) for _ in range(2)]
        assert (await other.ask(Code.SEND_MESSAGE_V2, send_fields(b="old"), b"1")).code == 0
        monkeypatch.setattr(Store, "save_config", slow)
        made = one.begin(Code.UPDATE_AND_CREATE_TOPIC, {**NEW, "topic": "new"})
        sent = one.begin(Code.SEND_MESSAGE_V2, send_fields(b="newer"), b"1")
        assert await asyncio.to_thread(busy.wait, 10)
        for _ in range(20):
            assert (await other.ask(Code.SEND_MESSAGE_V2, send_fields(b="old"), b"1")).code == 0
        assert not made.done()
        assert not sent.done()
        free.set()
        assert (await made).code == (await sent).code == 0
        topics = TopicTable.load((tmp_path / "config/topics.json").read_bytes())
        assert {"new", "newer", "old"} <= {topic.name for topic in topics}


async def test_the_administration_answers_when_a_topic_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, busy, save = threading.Event(), threading.Event(), Store.save_config

    def slow(store: Store, name: str, data: bytes) -> None:
        busy.set()
        assert free.wait(20)
        save(store, name, data)

    async with Node(options(tmp_path, admin_port=0)) as node:
        monkeypatch.setattr(Store, "save_config", slow)
        reader, writer = await asyncio.open_connection("127.0.0.1", node.admin_port)
        form = (
            "method=admin_add_new_topic_record&createUser=me&brokerId=1&topicName=made"
            "&confModAuthToken=abc"
        )
        writer.write(
            "POST /webapi.htm HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Content-Length: {len(form)}\r\n\r\n{form}"
            "GET /webapi.htm?method=admin_query_broker_configure HTTP/1.1\r\n"
            "Host: 127.0.0.1\r\n\r\n".encode()
        )
        assert await asyncio.to_thread(busy.wait, 10)
        answer = asyncio.create_task(reader.readuntil(b"}"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(answer), 0.01)
        free.set()
        assert b'"result":true' in await answer
        assert b"made" in (tmp_path / "config/tubemqMaster.json").read_bytes()
        assert b"HTTP/1.1 200" in await reader.readuntil(b"HTTP/1.1 200")
        writer.close()
