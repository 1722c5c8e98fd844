"""Transactions and delays, the same bytes to Java's broker and to ours."""

from __future__ import annotations

import asyncio
import time
from typing import Any, TypeAlias

import pytest

from coherer._record.batches import encode_batch_item
from coherer._record.ids import decode_offset_id
from coherer._record.layout import Record, decode
from coherer._record.properties import decode as properties_of
from coherer._wire.rocketmq.codes import RequestCode as Code
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.command import Command
from tests.interop.peers.broker_scenario import BrokerScenario
from tests.interop.peers.rocket_site import RocketSite
from tests.server.client_harness import Client, heartbeat
from tests.server.rocket_harness import SEND_V2, pull_fields, records_of, send_fields

pytestmark = [pytest.mark.interop, pytest.mark.slow]

COMMIT, ROLL_BACK, UNKNOWN = 8, 12, 0
MARKS = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
WAIT_S = 15.0
Said: TypeAlias = list[tuple[Any, ...]]


class Play:
    """One broker, what it is asked, and what it says."""

    def __init__(self, scenario: BrokerScenario, client: Client) -> None:
        self.scenario = scenario
        self.client = client
        self.said: Said = []

    def note(self, label: str, *what: object) -> None:
        self.said.append((label, *what))

    def plain(self, text: str) -> str:
        return text.replace(self.scenario.topic, "TOPIC").replace(
            self.scenario.producers, "PRODUCERS"
        )

    async def prepare(self, body: str, **properties: str) -> tuple[int, int]:
        """A half message; returns its queue offset and its log offset."""
        given = {
            "TRAN_MSG": "true",
            "PGROUP": self.scenario.producers,
            "UNIQ_KEY": f"U{body}",
            "TAGS": "TagA",
            "WAIT": "true",
            **properties,
        }
        text = "\x02".join(f"{name}\x01{value}" for name, value in given.items())
        # Java's copies of half messages lose the flag, ours do not: here it is 0.
        fields = send_fields(
            a=self.scenario.producers, b=self.scenario.topic, e=1, f=4, g=_now_ms(), h=0, i=text
        )
        answer = await self.client.ask(SEND_V2, fields, body.encode())
        self.note("prepared", answer.code, answer.remark, answer.fields.get("queueId"))
        at = decode_offset_id(answer.fields["msgId"]).physical_offset
        return int(answer.fields["queueOffset"]), at

    async def end(self, label: str, scenario: tuple[int, int], how: int, **changes: str) -> None:
        answer = await self.client.ask(Code.END_TRANSACTION, self.ending(scenario, how, **changes))
        self.note(label, answer.code, answer.remark)

    def ending(self, scenario: tuple[int, int], how: int, **changes: str) -> dict[str, str]:
        return {
            "producerGroup": self.scenario.producers,
            "tranStateTableOffset": str(scenario[0]),
            "commitLogOffset": str(scenario[1]),
            "commitOrRollback": str(how),
            "fromTransactionCheck": "false",
            "msgId": "U",
            **changes,
        }

    async def record_at(self, offset: int) -> Record:
        answer = await self.client.ask(Code.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
        return decode(bytes(answer.body))

    async def next_mark(self, offset: int, half: int) -> Record:
        """The mark of a half message, by its queue offset: the first one from there on."""
        async with asyncio.timeout(WAIT_S):
            while True:
                fields = {"offset": str(offset)}
                answer = await self.client.ask(Code.VIEW_MESSAGE_BY_ID, fields)
                if answer.code:  # the end of the log for now
                    await asyncio.sleep(0.02)
                    continue
                record = decode(bytes(answer.body))
                if record.topic == MARKS and int(bytes(record.body)) == half:
                    return record
                offset += record.size

    def note_record(self, label: str, record: Record) -> None:
        found = properties_of(record.properties)
        self.note(
            label,
            self.plain(record.topic),
            record.queue_id,
            record.sys_flag,
            record.flag,
            bytes(record.body),
            {name: self.plain(value) for name, value in sorted(found.items())},
        )

    async def pulled(self, topic: str, queue: int, offset: int, count: int) -> list[Record]:
        """Messages of a queue, when there are so many."""
        fields = pull_fields(
            consumerGroup="TOOLS_CONSUMER", topic=topic, queueId=queue, queueOffset=offset
        )
        async with asyncio.timeout(WAIT_S):
            while True:
                answer = await self.client.ask(Code.PULL_MESSAGE, fields)
                if answer.code == 0 and len(found := records_of(answer)) >= count:
                    return found
                await asyncio.sleep(0.02)


def _now_ms() -> int:
    return time.time_ns() // 10**6


async def ended(play: Play) -> None:
    """Everything that a producer can say at the end, also what does not fit."""
    await play.scenario.send(play.client)  # makes the topic
    first = await play.prepare("first")
    second = await play.prepare("second")
    play.note_record("half", await play.record_at(first[1]))
    await play.end("another group", first, COMMIT, producerGroup="others")
    await play.end("another scenario", (first[0] + 1, first[1]), COMMIT)
    await play.end("nothing there", (first[0], 1 << 40), COMMIT)
    nothing = play.client.begin(Code.END_TRANSACTION, play.ending(first, UNKNOWN))
    await play.end("commit", first, COMMIT)
    await play.end("roll back", second, ROLL_BACK)
    play.note("not known", nothing.done())
    (real,) = await play.pulled(play.scenario.topic, 1, 0, 1)
    play.note_record("real", real)
    play.note("of the half message", real.prepared_offset == first[1], real.queue_offset)
    # Java knows no topic of the marks, so that nobody pulls them; they follow in the log, with
    # what others write there meanwhile.
    at = real.physical_offset + real.size
    for half in (first, second):
        mark = await play.next_mark(at, half[0])
        play.note("mark", mark.topic, mark.queue_id, properties_of(mark.properties))
        at = mark.physical_offset + mark.size


async def delayed(play: Play) -> None:
    """What waits in the schedule topic, and what comes out of it."""
    await play.scenario.send(play.client)
    text = "DELAY\x01{}\x02WAIT\x01true\x02KEYS\x01k1 k2\x02TAGS\x01TagA\x02UNIQ_KEY\x01U1"
    for level in (18, 99, 1):
        fields = send_fields(b=play.scenario.topic, e=1, f=1, i=text.format(level))
        answer = await play.client.ask(SEND_V2, fields, b"late")
        play.note("sent", answer.code, answer.remark, answer.fields.get("queueId"))
        at = decode_offset_id(answer.fields["msgId"]).physical_offset
        play.note_record(f"level {level}", await play.record_at(at))
    (real,) = await play.pulled(play.scenario.topic, 1, 0, 1)
    play.note_record("delivered", real)
    play.note("delivered", real.prepared_offset, real.queue_offset, real.reconsume_times)


async def asked(play: Play) -> None:
    """Who says nothing is asked, with the message as it was sent."""
    await play.scenario.send(play.client)
    data = heartbeat("me", [], play.scenario.producers)
    play.note("heartbeat", (await play.client.beat(data)).code)
    half = await play.prepare("open", KEYS="k1", colour="red")
    request = await the_question(play.client)
    record = decode(bytes(request.body))
    play.note_record("question", record)
    fields = request.fields
    where = int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"])
    play.note(
        "about",
        request.is_oneway,
        where[0] > half[0],
        sorted(fields),
        fields["msgId"],
        fields["transactionId"],
        decode_offset_id(fields["offsetMsgId"]).physical_offset == where[1],
        (record.queue_offset, record.physical_offset) == where,
    )
    play.note_record("copy", await play.record_at(where[1]))
    await play.end("answer", where, COMMIT, fromTransactionCheck="true")
    (real,) = await play.pulled(play.scenario.topic, 1, 0, 1)
    play.note_record("real", real)


async def the_question(client: Client) -> Command:
    async with asyncio.timeout(WAIT_S):
        while True:
            request = await client.asked.get()
            if request.code == Code.CHECK_TRANSACTION_STATE:
                return request


async def resumed(play: Play) -> None:
    """What is no message cannot be brought back."""
    for label, identity in (
        ("none", ""),
        ("no id", "xyz"),
        ("nothing there", "7F" * 12 + "00" * 4),
    ):
        answer = await play.client.ask(Code.RESUME_CHECK_HALF_MESSAGE, {"msgId": identity})
        play.note(label, answer.code, answer.remark)


@pytest.mark.parametrize("script", [ended, delayed, asked, resumed])
async def test_what_java_stores_and_says_we_do(rocket: RocketSite, script: Any) -> None:
    said: dict[str, Said] = {}
    for kind in ("java", "ours"):
        scenario = BrokerScenario(await asyncio.to_thread(rocket.cluster, kind))
        play = Play(scenario, await scenario.dial())
        try:
            await script(play)
        finally:
            await play.client.hang_up()
        said[kind] = play.said
    assert len(said["java"]) > 2
    for java, ours in zip(said["java"], said["ours"], strict=True):
        assert ours == java


async def test_java_refuses_half_batches(rocket: RocketSite) -> None:
    """It would publish the messages at once, or all of them as one, by a code that it knows."""
    scenario = BrokerScenario(await asyncio.to_thread(rocket.cluster, "java"))
    play = Play(scenario, await scenario.dial())
    try:
        half = await play.prepare("a")
        batch = encode_batch_item(b"b", b"") + encode_batch_item(b"c", b"")
        text = f"TRAN_MSG\x01true\x02PGROUP\x01{scenario.producers}"
        fields = send_fields(a=scenario.producers, b=scenario.topic, e=1, g=_now_ms(), i=text)
        sent = await play.client.ask(Code.SEND_HALF_BATCH, fields, batch)
        ended = await play.client.ask(Code.END_HALF_BATCH, play.ending(half, COMMIT))
        assert [sent.code, ended.code] == [ResponseCode.REQUEST_CODE_NOT_SUPPORTED] * 2
        await play.end("committed", half, COMMIT)
        (real,) = await play.pulled(scenario.topic, 1, 0, 1)
        assert bytes(real.body) == b"a"
        ends = {"topic": scenario.topic, "queueId": "1"}
        assert (await play.client.ask(Code.GET_MAX_OFFSET, ends)).fields["offset"] == "1"
    finally:
        await play.client.hang_up()
