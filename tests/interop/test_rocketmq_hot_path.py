"""Sends, pulls, offsets, queries and retries: the same bytes to Java's broker and to ours.

Each test writes down what a broker answers, without what differs from broker to broker, and what
Java's broker said is what ours has to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from coherer._record.batches import encode_batch_item
from tests.interop.peers.recorder import WAIT_S, Recorder, Script
from tests.server.client_harness import consumer, heartbeat, sql, tags
from tests.server.rocket_harness import (
    COMMIT,
    LETTERS,
    PULL,
    SEND,
    SEND_BACK,
    SEND_V2,
    SUBSCRIPTION,
    SUSPEND,
)

pytestmark = [pytest.mark.interop, pytest.mark.slow]

BATCH = 320


async def test_sends(same: Callable[[Script], Awaitable[None]]) -> None:
    async def script(recorder: Recorder) -> None:
        async def send(
            label: str, body: bytes = b"x", code: int = SEND_V2, **changes: object
        ) -> None:
            await recorder.ask(label, code, recorder.sending(**changes), body)

        await send("blank", b="")
        await send("letters", b="a b")
        await send("long", b="x" * 128)
        await send("schedule", b="SCHEDULE_TOPIC_XXXX")
        await send("no model", c="nothing")
        await send("model without heirs", c="BenchmarkTest")
        await send("queue of a new topic", e=4)
        await send("first", i="TAGS\x01A\x02KEYS\x01a  b\x02WAIT\x01false\x02UNIQ_KEY\x010A\x02")
        await send("second", e=3, i="empty\x01\x02x\x02k\x01v\x02k\x01w")
        await send("no properties", i=None)
        await send("empty", b"")
        await send("compressed", b"zipped", f=1)
        await send("queue", e=4)
        await send("too large", b"x" * (4 << 20))
        await send("properties", i="k\x01" + "v" * 33_000)
        await send("not a number", e="x")
        await send("without a letter", a=None)
        long = {LETTERS[name]: value for name, value in recorder.sending(i="k\x01v").items()}
        await recorder.ask("long names", SEND, long, b"long")
        await recorder.ask("no topic", SEND, {**long, "topic": ""}, b"long")
        await send("no retries", b=f"%RETRY%{recorder.scenario.group}", c="none", i="", j=1)
        await send("dead", b=f"%RETRY%{recorder.scenario.group}", c="none", j=16)
        await recorder.visible(5)
        await recorder.ask("stored", PULL, recorder.pulling())
        await recorder.ask("stored elsewhere", PULL, recorder.pulling(queueId=3))
        dead = f"%DLQ%{recorder.scenario.group}"
        await recorder.visible(1, dead)
        await recorder.ask("dead letters", PULL, recorder.pulling(topic=dead))

    await same(script)


async def test_batches(same: Callable[[Script], Awaitable[None]]) -> None:
    async def script(recorder: Recorder) -> None:
        items = [
            encode_batch_item(b"one", b"TAGS\x01a\x02WAIT\x01true"),
            encode_batch_item(b"two", b"", 5),
        ]
        body = b"".join(items)

        async def send(label: str, body: bytes = body, **changes: object) -> None:
            fields = recorder.sending(**{"m": "true", "i": "WAIT\x01true", **changes})
            await recorder.ask(label, BATCH, fields, body)

        await send("a batch")
        await send("without properties", i="")
        await send("a transaction", f=4)
        await send("delayed", i="DELAY\x013")
        await send("not said to be one", m="false")
        await recorder.visible(5)
        await recorder.ask("stored", PULL, recorder.pulling())

    await same(script)


async def test_pulls(same: Callable[[Script], Awaitable[None]]) -> None:
    async def script(recorder: Recorder) -> None:
        async def pull(label: str, **changes: object) -> None:
            await recorder.ask(label, PULL, recorder.pulling(**changes))

        await pull("no topic")
        await recorder.fill(6)
        await pull("everything")
        await pull("two", maxMsgNums=2, queueOffset=3)
        await pull("none asked for", maxMsgNums=0)
        for text in ("a", "a || b", "c", "", None, "||", " * ", "a||b||c"):
            await pull(f"tags {text}", subscription=text)
        await pull("tags of no type", subscription="a", expressionType=None)
        for text in ("n > 2", "TAGS = 'a'", "n < 0", "n =", "", "n > 2 AND"):
            await pull(f"expression {text}", subscription=text, expressionType="SQL92")
        for offset in (6, 7, 100, -1):
            await pull(f"at {offset}", queueOffset=offset)
            await pull(f"at {offset} of an empty queue", queueOffset=offset, queueId=1)
        await pull("at the beginning of an empty queue", queueId=1)
        for queue in (-1, 4):
            await pull(f"queue {queue}", queueId=queue)
        await pull("no such topic", topic="none")
        for name in ("queueId", "queueOffset", "maxMsgNums", "sysFlag"):
            await pull(f"without {name}", **{name: None})

    await same(script)


async def test_pulls_by_the_groups_subscription(
    same: Callable[[Script], Awaitable[None]],
) -> None:
    async def script(recorder: Recorder) -> None:
        scenario = recorder.scenario
        await recorder.fill(4)

        async def pull(label: str, version: int = 5) -> None:
            fields = recorder.pulling(sysFlag=0, subVersion=version, subscription=None)
            await recorder.ask(label, PULL, fields)

        async def beat(*topics: dict[str, Any]) -> None:
            await recorder.client.beat(heartbeat("me", [consumer(scenario.group, *topics)]))

        await pull("nobody")
        await beat(tags("other"))
        await pull("another topic")
        await beat(tags(scenario.topic, 4))
        await pull("too old")
        await beat(tags(scenario.topic, 5, subString="b", tagsSet=["b"], codeSet=[98]))
        await pull("tags")
        await beat(sql(scenario.topic, "n =", 6))
        await pull("a wrong expression", 6)
        await beat(sql(scenario.topic, "n > 1", 7))
        await pull("an expression", 7)
        await pull("a newer one", 8)

    await same(script)


async def test_pulls_that_wait(same: Callable[[Script], Awaitable[None]]) -> None:
    async def script(recorder: Recorder) -> None:
        await recorder.fill(2)
        flags = SUSPEND | SUBSCRIPTION | COMMIT
        wanted = recorder.pulling(queueOffset=2, sysFlag=flags, subscription="c", commitOffset=2)
        waits = recorder.client.begin(PULL, wanted)
        of_group = recorder.queue(consumerGroup=recorder.scenario.group)
        # Pulls have threads of their own in Java.
        await recorder.until(14, of_group, lambda answer: answer.fields["offset"] == "2")
        await recorder.ask("the offset is known", 14, of_group)
        assert not waits.done()
        await recorder.client.ask(SEND_V2, recorder.sending(i="TAGS\x01c"), b"wanted")
        async with asyncio.timeout(WAIT_S):
            recorder.note("woken", await waits)
        short = recorder.pulling(queueOffset=3, sysFlag=flags, suspendTimeoutMillis=1)
        async with asyncio.timeout(WAIT_S):
            recorder.note("in vain", await recorder.client.begin(PULL, short))

    await same(script)


async def test_offsets_and_queries(same: Callable[[Script], Awaitable[None]]) -> None:
    async def script(recorder: Recorder) -> None:
        of_group = recorder.queue(consumerGroup=recorder.scenario.group)
        await recorder.ask("a new group", 14, of_group)
        for code in (30, 31, 32):
            await recorder.ask(f"{code} of nothing", code, recorder.queue())
        await recorder.fill(5)
        await recorder.ask("still new", 14, of_group)
        for offset in (4, 2, 99):
            await recorder.ask(f"commit {offset}", 15, {**of_group, "commitOffset": str(offset)})
            await recorder.ask(f"after {offset}", 14, of_group)
        for code in (30, 31):
            await recorder.ask(f"{code}", code, recorder.queue())
        for time in ("0", "9999999999999"):
            await recorder.ask(f"at {time}", 29, recorder.queue(timestamp=time))
            await recorder.ask(
                f"at {time} of nothing", 29, recorder.queue(timestamp=time, queueId=1)
            )
        key = {"topic": recorder.scenario.topic, "maxNum": "10", "beginTimestamp": "0"}
        key["endTimestamp"] = "9999999999999"
        # Java's index follows.
        await recorder.until(12, {**key, "key": "U4"}, lambda answer: answer.code == 0)
        answer = await recorder.client.ask(12, {**key, "key": "U3"})
        recorder.lines.append(("by key", answer.code, recorder.messages(answer)))
        await recorder.ask("no such key", 12, {**key, "key": "none"})
        sent = await recorder.scenario.send(recorder.client, b"by its scenario")
        scenario = int(sent["msgId"][16:], 16)
        await recorder.visible(6)
        answer = await recorder.client.ask(33, {"offset": str(scenario)})
        recorder.lines.append(("by scenario", answer.code, recorder.messages(answer)))

    await same(script)


async def test_what_consumers_give_back(same: Callable[[Script], Awaitable[None]]) -> None:
    async def script(recorder: Recorder) -> None:
        group = recorder.scenario.group
        sent = await recorder.scenario.send(recorder.client, b"bad")
        scenario = int(sent["msgId"][16:], 16)
        await recorder.visible(1)

        def back(**changes: object) -> dict[str, str]:
            fields = {"offset": scenario, "group": group, "delayLevel": 0, **changes}
            return {name: str(value) for name, value in fields.items()}

        await recorder.ask("not there", SEND_BACK, back(offset=1 << 50))
        await recorder.ask("at once", SEND_BACK, back(delayLevel=1))
        await recorder.visible(1, f"%RETRY%{group}")
        again = recorder.pulling(topic=f"%RETRY%{group}")
        await recorder.ask("again", PULL, again)
        await recorder.ask("dead", SEND_BACK, back(delayLevel=-1))
        await recorder.ask("dead by its limit", SEND_BACK, back(maxReconsumeTimes=0))
        await recorder.visible(2, f"%DLQ%{group}")
        await recorder.ask("dead letters", PULL, recorder.pulling(topic=f"%DLQ%{group}"))

    await same(script)
