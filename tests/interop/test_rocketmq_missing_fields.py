"""Each field of each request left out or no number, bodies that are null: Java's answer is ours.

See docs/protocol/rocketmq.md, section 1.5.

What Java makes of it depends on who touches the null (section 1.5): often nothing, sometimes code
1.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.interop.peers.recorder import Recorder, Script

pytestmark = [pytest.mark.interop, pytest.mark.slow]

OFFSET_ID = "7F00000100002A9F0000000000000000"
QUEUE = "topic queueId=0"
REQUESTS = {
    12: "topic key=k maxNum=4 beginTimestamp=0 endTimestamp=9000000000000",
    14: f"group:consumerGroup {QUEUE}",
    15: f"group:consumerGroup {QUEUE} commitOffset=1",
    29: f"{QUEUE} timestamp=0",
    30: QUEUE,
    31: QUEUE,
    32: QUEUE,
    33: "offset=0",
    35: "clientID=c producerGroup=p consumerGroup=g",
    38: "group:consumerGroup",
    202: "topic",
    203: "group:consumerGroup",
    204: "producerGroup=p",
    207: "groupName=none removeOffset=true",
    208: "group:consumerGroup topic",
    222: "topic group timestamp=0 isForce=true",
    300: "topic",
    303: "topic group",
    307: "group:consumerGroup clientId=c jstackEnable=false",
    309: f"group:consumerGroup clientId=c msgId={OFFSET_ID}",
    314: "group:srcGroup destGroup=other topic offline=true",
    315: "statsName=TOPIC_PUT_NUMS statsKey=nothing",
    317: "isOrder=false",
    321: f"{QUEUE} index=0 count=1 group:consumerGroup",
}
OURS_REFUSES = {(15, "topic")}
"""Java's broker stores a position in a topic that does not exist, as docs/compatibility.md says."""
NULLS = {34: b"null", 41: b"null", 42: b"[]", 46: b"null", 200: b"[]"}
ODD_NUMBERS = ("x", "", "-1", "99999999999999999999")


def fields_of(recorder: Recorder, words: str) -> dict[str, str]:
    """`name=value` says both; a topic and groups are the scenario's."""
    fields: dict[str, str] = {}
    for word in words.split():
        name, found, value = word.partition("=")
        kind, _, alias = name.partition(":")
        own = recorder.scenario.topic if kind == "topic" else recorder.scenario.group
        fields[alias or kind] = value if found else own
    return fields


async def ask(
    recorder: Recorder, label: str, code: int, fields: dict[str, str], body: bytes
) -> None:
    answer = await recorder.client.ask(code, fields, body)
    remark = "some remark" if answer.code == 1 and answer.remark else answer.remark
    said = recorder.plain(remark or ""), sorted(answer.fields), bool(answer.body)
    recorder.lines.append((label, answer.code, *said))


async def test_each_field_in_turn(same: Callable[[Script], Awaitable[None]]) -> None:
    async def script(recorder: Recorder) -> None:
        await recorder.fill(2)
        await recorder.scenario.member("here")
        for queue in range(4):
            await recorder.scenario.commit(recorder.client, queue, 0)
        for code, words in REQUESTS.items():
            whole = fields_of(recorder, words)
            await ask(recorder, f"{code}", code, whole, b"")
            for name, value in whole.items():
                rest = {other: said for other, said in whole.items() if other != name}
                if (code, name) not in OURS_REFUSES:
                    await ask(recorder, f"{code} without {name}", code, rest, b"")
                for odd in ODD_NUMBERS if value.isdigit() and name != "queueId" else ():
                    await ask(recorder, f"{code} {name}={odd}", code, {**rest, name: odd}, b"")

    await same(script)


async def test_bodies_that_are_null(same: Callable[[Script], Awaitable[None]]) -> None:
    async def script(recorder: Recorder) -> None:
        for code, body in NULLS.items():
            await ask(recorder, f"{code}", code, {}, body)
        for body in (b"", b"nonsense", b"\xff", b"traceOn=true"):
            await ask(recorder, f"25 {body!r}", 25, {}, body)
        await ask(recorder, "25 malformed", 25, {}, b"traceOn=\\u00")

    await same(script)
