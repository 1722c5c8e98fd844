"""Invalid requests are answered, and neither close the connection nor stop the broker.

See docs/protocol/rocketmq.md, section 2.9.
"""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coherer._server.rocketmq.broker.send_properties import (
    BatchPropertyRewriter,
    PropertyRewriter,
)
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode
from coherer._wire.rocketmq.command import Command, encode
from tests.server.rocket_harness import SEND_V2, BrokerHarness, Client, pull_fields, send_fields

CODES = sorted(int(code) for code in RequestCode)
SILENT = {RequestCode.END_TRANSACTION}
"""A transaction of which the producer knows nothing is not answered (section 2.9)."""

NAMES = [
    *send_fields(),
    *pull_fields(),
    *("offset", "group", "delayLevel", "timestamp", "key", "maxNum", "clientID", "groupName"),
    *("topicFilterType", "perm", "readQueueNums", "writeQueueNums", "configStr", "isForce"),
    *("commitOrRollback", "commitLogOffset", "tranStateTableOffset", "statsName", "brokerAddr"),
]
VALUES = st.sampled_from(
    ["", "x", "0", "-1", "1e5", "99999999999999999999", "true", "demo", "%RETRY%g", "\x01", "é"]
)
FIELDS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=12)
BODIES = st.sampled_from(
    [b"", b"{", b"{}", b"[]", b"null", b'{"clientId":1}', b'{"mqSet":[1]}', b"\xff" * 9]
) | st.binary(max_size=60)


@pytest.mark.parametrize("code", CODES)
async def test_junk(
    broker_harness: BrokerHarness, peer: Client, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    await peer.send(b"before")

    @settings(max_examples=25)
    @given(fields=FIELDS, body=BODIES)
    def ask(fields: dict[str, str], body: bytes) -> None:
        asked.append(peer.begin(code, fields, body))

    asked: list[asyncio.Future[Command]] = []
    ask()
    if code in SILENT:
        await peer.settle()
    else:
        async with asyncio.timeout(20):
            answers = await asyncio.gather(*asked)
        assert {answer.code for answer in answers} <= set(map(int, ResponseCode))
    assert (await peer.send(b"after")).code == 0
    for unanswered in asked:
        unanswered.cancel()


@given(st.binary(max_size=200))
@settings(max_examples=30)
def test_junk_as_properties(text: bytes) -> None:
    stored = PropertyRewriter("C").stored(text.decode("utf-8", "replace"))
    assert b"CLUSTER\x01C" in stored.data
    assert (
        BatchPropertyRewriter("WAIT\x01true", "C")
        .stored([text])[0][0]
        .startswith(text.replace(b"TUBE\x01", b""))
    )


@pytest.mark.parametrize(
    "text", ["\ud800", "UNIQ_KEY\x01\ud800", "KEYS\x01a\ud800\x02TAGS\x01\ud800"]
)
async def test_half_characters(peer: Client, broker_harness: BrokerHarness, text: str) -> None:
    frame = encode(Command(SEND_V2, 1, fields=send_fields(i="SURROGATE")))
    escaped = text.encode("unicode_escape").replace(b"\\x", b"\\u00")
    size = len(escaped) - len(b"SURROGATE")
    frame = frame.replace(b"SURROGATE", escaped)
    length, word = int.from_bytes(frame[:4], "big"), int.from_bytes(frame[4:8], "big")
    head = (length + size).to_bytes(4, "big") + (word + size).to_bytes(4, "big")
    for _ in range(2):
        answer = peer.expect(1)
        peer.connection.write(head + frame[8:])
        async with asyncio.timeout(10):
            assert (await answer).code == 0
    assert len(broker_harness.records("demo")) == 2
