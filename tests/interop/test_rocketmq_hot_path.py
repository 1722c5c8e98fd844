"""Sends, pulls, offsets, queries and retries: the same bytes to Java's broker and to ours.

Each test writes down what a broker answers, without what differs from place to place, and what
Java's broker said is what ours has to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from coherer._wire.rocketmq.messages import encode_batch_item
from tests.interop.peers.rocket_scribe import WAIT_S, Scribe, Script
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
    async def script(scribe: Scribe) -> None:
        async def send(
            label: str, body: bytes = b"x", code: int = SEND_V2, **changes: object
        ) -> None:
            await scribe.ask(label, code, scribe.sending(**changes), body)

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
        long = {LETTERS[name]: value for name, value in scribe.sending(i="k\x01v").items()}
        await scribe.ask("long names", SEND, long, b"long")
        await scribe.ask("no topic", SEND, {**long, "topic": ""}, b"long")
        await send("no retries", b=f"%RETRY%{scribe.place.group}", c="none", i="", j=1)
        await send("dead", b=f"%RETRY%{scribe.place.group}", c="none", j=16)
        await scribe.visible(5)
        await scribe.ask("stored", PULL, scribe.pulling())
        await scribe.ask("stored elsewhere", PULL, scribe.pulling(queueId=3))
        dead = f"%DLQ%{scribe.place.group}"
        await scribe.visible(1, dead)
        await scribe.ask("dead letters", PULL, scribe.pulling(topic=dead))

    await same(script)


async def test_batches(same: Callable[[Script], Awaitable[None]]) -> None:
    async def script(scribe: Scribe) -> None:
        items = [
            encode_batch_item(b"one", b"TAGS\x01a\x02WAIT\x01true"),
            encode_batch_item(b"two", b"", 5),
        ]
        body = b"".join(items)

        async def send(label: str, body: bytes = body, **changes: object) -> None:
            fields = scribe.sending(**{"m": "true", "i": "WAIT\x01true", **changes})
            await scribe.ask(label, BATCH, fields, body)

        await send("a batch")
        await send("without properties", i="")
        await send("a transaction", f=4)
        await send("delayed", i="DELAY\x013")
        await send("not said to be one", m="false")
        await scribe.visible(5)
        await scribe.ask("stored", PULL, scribe.pulling())

    await same(script)


async def test_pulls(same: Callable[[Script], Awaitable[None]]) -> None:
    async def script(scribe: Scribe) -> None:
        async def pull(label: str, **changes: object) -> None:
            await scribe.ask(label, PULL, scribe.pulling(**changes))

        await pull("no topic")
        await scribe.fill(6)
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
    async def script(scribe: Scribe) -> None:
        place = scribe.place
        await scribe.fill(4)

        async def pull(label: str, version: int = 5) -> None:
            fields = scribe.pulling(sysFlag=0, subVersion=version, subscription=None)
            await scribe.ask(label, PULL, fields)

        async def beat(*topics: dict[str, Any]) -> None:
            await scribe.client.beat(heartbeat("me", [consumer(place.group, *topics)]))

        await pull("nobody")
        await beat(tags("other"))
        await pull("another topic")
        await beat(tags(place.topic, 4))
        await pull("too old")
        await beat(tags(place.topic, 5, subString="b", tagsSet=["b"], codeSet=[98]))
        await pull("tags")
        await beat(sql(place.topic, "n =", 6))
        await pull("a wrong expression", 6)
        await beat(sql(place.topic, "n > 1", 7))
        await pull("an expression", 7)
        await pull("a newer one", 8)

    await same(script)


async def test_pulls_that_wait(same: Callable[[Script], Awaitable[None]]) -> None:
    async def script(scribe: Scribe) -> None:
        await scribe.fill(2)
        flags = SUSPEND | SUBSCRIPTION | COMMIT
        wanted = scribe.pulling(queueOffset=2, sysFlag=flags, subscription="c", commitOffset=2)
        waits = scribe.client.begin(PULL, wanted)
        of_group = scribe.queue(consumerGroup=scribe.place.group)
        # Pulls have threads of their own in Java.
        await scribe.until(14, of_group, lambda answer: answer.fields["offset"] == "2")
        await scribe.ask("the offset is known", 14, of_group)
        assert not waits.done()
        await scribe.client.ask(SEND_V2, scribe.sending(i="TAGS\x01c"), b"wanted")
        async with asyncio.timeout(WAIT_S):
            scribe.note("woken", await waits)
        short = scribe.pulling(queueOffset=3, sysFlag=flags, suspendTimeoutMillis=1)
        async with asyncio.timeout(WAIT_S):
            scribe.note("in vain", await scribe.client.begin(PULL, short))

    await same(script)


async def test_offsets_and_queries(same: Callable[[Script], Awaitable[None]]) -> None:
    async def script(scribe: Scribe) -> None:
        of_group = scribe.queue(consumerGroup=scribe.place.group)
        await scribe.ask("a new group", 14, of_group)
        for code in (30, 31, 32):
            await scribe.ask(f"{code} of nothing", code, scribe.queue())
        await scribe.fill(5)
        await scribe.ask("still new", 14, of_group)
        for offset in (4, 2, 99):
            await scribe.ask(f"commit {offset}", 15, {**of_group, "commitOffset": str(offset)})
            await scribe.ask(f"after {offset}", 14, of_group)
        for code in (30, 31):
            await scribe.ask(f"{code}", code, scribe.queue())
        for time in ("0", "9999999999999"):
            await scribe.ask(f"at {time}", 29, scribe.queue(timestamp=time))
            await scribe.ask(f"at {time} of nothing", 29, scribe.queue(timestamp=time, queueId=1))
        key = {"topic": scribe.place.topic, "maxNum": "10", "beginTimestamp": "0"}
        key["endTimestamp"] = "9999999999999"
        # Java's index follows.
        await scribe.until(12, {**key, "key": "U4"}, lambda answer: answer.code == 0)
        answer = await scribe.client.ask(12, {**key, "key": "U3"})
        scribe.lines.append(("by key", answer.code, scribe.messages(answer)))
        await scribe.ask("no such key", 12, {**key, "key": "none"})
        sent = await scribe.place.send(scribe.client, b"by its place")
        place = int(sent["msgId"][16:], 16)
        await scribe.visible(6)
        answer = await scribe.client.ask(33, {"offset": str(place)})
        scribe.lines.append(("by place", answer.code, scribe.messages(answer)))

    await same(script)


async def test_what_consumers_give_back(same: Callable[[Script], Awaitable[None]]) -> None:
    async def script(scribe: Scribe) -> None:
        group = scribe.place.group
        sent = await scribe.place.send(scribe.client, b"bad")
        place = int(sent["msgId"][16:], 16)
        await scribe.visible(1)

        def back(**changes: object) -> dict[str, str]:
            fields = {"offset": place, "group": group, "delayLevel": 0, **changes}
            return {name: str(value) for name, value in fields.items()}

        await scribe.ask("not there", SEND_BACK, back(offset=1 << 50))
        await scribe.ask("at once", SEND_BACK, back(delayLevel=1))
        await scribe.visible(1, f"%RETRY%{group}")
        again = scribe.pulling(topic=f"%RETRY%{group}")
        await scribe.ask("again", PULL, again)
        await scribe.ask("dead", SEND_BACK, back(delayLevel=-1))
        await scribe.ask("dead by its limit", SEND_BACK, back(maxReconsumeTimes=0))
        await scribe.visible(2, f"%DLQ%{group}")
        await scribe.ask("dead letters", PULL, scribe.pulling(topic=f"%DLQ%{group}"))

    await same(script)
