"""Plays the same requests to Java's broker and to ours, and compares what they say.

A script records what a broker answers, without what differs from broker to broker; what Java's
said is what ours has to say.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from coherer._record.properties import decode
from coherer._wire.rocketmq.command import Command
from tests.server.client_harness import Client
from tests.server.rocket_harness import SEND_V2, pull_fields, records_of, send_fields

from .broker_scenario import BrokerScenario
from .rocket_site import RocketSite

MAXIMUM = 30
WAIT_S = 15.0
_EXCEPTION = re.compile(r"(?s)^[\w.]*(Exception|Error): .*")
Line: TypeAlias = tuple[Any, ...]


class Recorder:
    """Sends requests to a broker and records its answers."""

    def __init__(self, scenario: BrokerScenario, client: Client) -> None:
        self.scenario = scenario
        self.client = client
        self.lines: list[Line] = []

    async def ask(
        self, label: str, code: int, fields: dict[str, str], body: bytes = b""
    ) -> Command:
        answer = await self.client.ask(code, fields, body)
        self.note(label, answer)
        return answer

    async def ask_oddly(
        self, label: str, code: int, fields: dict[str, str], body: bytes = b""
    ) -> None:
        """The same where Java's remark tells of a failure of its own: only that it tells counts."""
        answer = await self.client.ask(code, fields, body)
        told = "some remark" if answer.code == 1 and answer.remark else answer.remark
        answer.remark = None
        self.note(f"{label}: {told}", answer)

    def note(self, label: str, answer: Command) -> None:
        fields = {name: self.plain(value) for name, value in sorted(answer.fields.items())}
        if "msgId" in fields:
            fields["msgId"] = f"{answer.fields['msgId'].count(',') + 1} ids"
        remark = None if answer.remark is None else self.plain(answer.remark)
        if remark is not None and answer.code == 1:
            missing = re.search("the custom field <.> is null", remark)
            remark = missing[0] if missing else _EXCEPTION.sub("some exception", remark)
        self.lines.append((label, answer.code, remark, fields, self.messages(answer)))

    def messages(self, answer: Command) -> list[Line]:
        try:
            records = records_of(answer)
        except Exception:  # noqa: BLE001 - not every body is messages
            return [(self.plain(bytes(answer.body).decode()),)]
        return [
            (
                bytes(record.body),
                self.plain(record.topic),
                record.queue_id,
                record.queue_offset,
                record.flag,
                record.sys_flag,
                record.born_ms,
                record.reconsume_times,
                {
                    name: self.plain(value)
                    for name, value in sorted(decode(record.properties).items())
                    if name != "ORIGIN_MESSAGE_ID"
                },
            )
            for record in records
        ]

    def plain(self, text: str) -> str:
        """Replace the names of this test and this broker."""
        text = text.replace(self.scenario.topic, "TOPIC").replace(self.scenario.group, "GROUP")
        return re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", text)

    def sending(self, **changes: object) -> dict[str, str]:
        return send_fields(**{"b": self.scenario.topic, **changes})

    def pulling(self, **changes: object) -> dict[str, str]:
        return pull_fields(
            **{"topic": self.scenario.topic, "consumerGroup": self.scenario.group, **changes}
        )

    def queue(self, **changes: object) -> dict[str, str]:
        fields = {"topic": self.scenario.topic, "queueId": 0, **changes}
        return {name: str(value) for name, value in fields.items()}

    async def visible(self, count: int, topic: str | None = None, queue: int = 0) -> None:
        """Java's brokers show a message a moment after they have taken it."""
        fields = self.queue(topic=topic or self.scenario.topic, queueId=queue)
        await self.until(MAXIMUM, fields, lambda answer: int(answer.fields["offset"]) >= count)

    async def until(
        self, code: int, fields: dict[str, str], holds: Callable[[Command], bool]
    ) -> None:
        """Asks until the answer is as it should be."""
        async with asyncio.timeout(WAIT_S):
            while True:
                if holds(await self.client.ask(code, fields)):
                    return
                await asyncio.sleep(0.02)

    async def fill(self, count: int) -> None:
        for number in range(count):
            text = f"TAGS\x01{'ab'[number % 2]}\x02n\x01{number}\x02UNIQ_KEY\x01U{number}"
            answer = await self.client.ask(SEND_V2, self.sending(i=text), b"%d" % number)
            assert answer.code == 0, answer.remark
        await self.visible(count)


Script: TypeAlias = Callable[[Recorder], Awaitable[None]]


async def play(rocket: RocketSite, script: Script) -> None:
    """Plays a script at both brokers, and compares."""
    said: dict[str, list[Line]] = {}
    for kind in ("java", "ours"):
        scenario = BrokerScenario(await asyncio.to_thread(rocket.cluster, kind))
        recorder = Recorder(scenario, await scenario.dial())
        await script(recorder)
        said[kind] = recorder.lines
        for client in scenario.clients:
            client.connection.close()
    assert len(said["java"]) > 2
    for java, ours in zip(said["java"], said["ours"], strict=True):
        assert ours == java, f"Java says {java}, and ours {ours}"
