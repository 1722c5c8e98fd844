"""Requests that no client should send, and settings that few have: Java's broker beside ours.

What a field lacks, is no number, or cannot be; bits of flags in combination; topics and groups with
unusual settings; a broker whose operator has switched something off.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import product
from typing import Any, TypeAlias

import msgspec
import pytest

from coherer._record.batches import encode_batch_item
from coherer._wire.rocketmq import fastjson
from tests.interop.peers.recorder import Recorder, Script
from tests.server.client_harness import consumer, heartbeat, sql, tags
from tests.server.rocket_harness import LETTERS, PULL, SEND_BACK, SEND_V2, SUBSCRIPTION, SUSPEND

pytestmark = [pytest.mark.interop, pytest.mark.slow]

BATCH, REPLY, REPLY_V2, END, RESUME = 320, 324, 325, 37, 323
HEARTBEAT, CHECK_CLIENT, LOCK, PUT_TOPIC, PUT_GROUP, TOPICS, PUT_SETTINGS = (
    34,
    46,
    41,
    17,
    200,
    21,
    25,
)
Same: TypeAlias = Callable[[Script], Awaitable[None]]


ODD_LETTERS = [
    *product("ghj", (-1,)),
    *product("k", ("1", "TRUE", "yes", "")),
    *product("m", ("1", "yes", "")),
    *product("f", (2, 4, 8, 12, 64, -64)),
    *product("i", ("DELAY\x01x", "DELAY\x01-1", "DELAY\x010", "WAIT\x011\x02a\x01b")),
    *product(
        "i", ("WAIT\x01TRUE\x02a\x01b", "CLUSTER\x01mine", "TRAN_MSG\x01no", "a\x01b\x02c\x01")
    ),
    *product("i", ("TAGS\x01\x02KEYS\x01 ", "UNIQ_KEY\x01A\x02UNIQ_KEY\x01B", "a\x01b\x01c")),
    ("i", "\x02\x02b\x01c\x02\x02"),
]


def text(fields: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in fields.items() if value is not None}


def topic(name: str, **changes: object) -> dict[str, str]:
    fields = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": 2, "writeQueueNums": 2}
    more = {"perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
    return text({**fields, **more, **changes})


async def made(recorder: Recorder, *names: str) -> None:
    """Writes down what became of topics."""
    table: Any = fastjson.loads((await recorder.client.ask(TOPICS, {})).body)
    for name in names:
        found = recorder.plain(str(table["topicConfigTable"].get(name)))
        recorder.lines.append((recorder.plain(name), found))


async def test_numbers_and_flags_of_a_send(same: Same) -> None:
    async def script(recorder: Recorder) -> None:
        async def send(label: str, **changes: object) -> None:
            await recorder.ask_oddly(label, SEND_V2, recorder.sending(**changes), b"x")

        for letter, value in product("efghj", (0, 1 << 31, "x", "", "+1")):
            await send(f"{letter}={value}", **{letter: value, "i": "n\x011"})
        for letter, value in ODD_LETTERS:
            await send(f"{letter}={value}", **{letter: value})
        group, retry = recorder.scenario.group, f"%RETRY%{recorder.scenario.group}"
        for label, changes in (
            ("unit", {"b": f"unit{group}", "k": "true"}),
            ("unit, again", {"b": f"%RETRY%unit{group}", "k": "true", "c": "none"}),
            ("made for all", {"b": f"%RETRY%new{group}"}),
            ("of no group", {"b": "%RETRY%", "c": "none"}),
            ("kept for all", {"b": f"rmq_sys_{group}"}),
            ("dead", {"b": retry, "c": "none", "j": 3, "l": 3, "i": "a\x01b\x02WAIT\x01false"}),
            ("dead at once", {"b": retry, "c": "none", "l": -1}),
        ):
            await send(label, **changes)
        await recorder.visible(2, f"%DLQ%{group}")
        await recorder.visible(35)
        # It arrives last; until then it is stored in a queue that all tests share.
        answer = await recorder.client.ask(SEND_V2, recorder.sending(i="DELAY\x011"), b"x")
        recorder.lines.append(("delayed", answer.code, answer.remark))
        await recorder.visible(36)
        for offset in (0, 32):
            await recorder.ask("stored", PULL, recorder.pulling(queueOffset=offset))
        await recorder.ask("dead letters", PULL, recorder.pulling(topic=f"%DLQ%{group}"))
        names = ("unit", "%RETRY%unit", "%RETRY%new", "%RETRY%", "%DLQ%")
        await made(recorder, *(f"{name}{group}" for name in names))

    await same(script)


async def test_the_largest_message(same: Same) -> None:
    async def script(recorder: Recorder) -> None:
        around = 91 + len(recorder.scenario.topic) + len("CLUSTER.DefaultCluster")
        for more in (-1, 0, 1):
            body = b"x" * ((4 << 20) - around + more)
            await recorder.ask(f"{more}", SEND_V2, recorder.sending(i=""), body)

    await same(script)


async def test_batches(same: Same) -> None:
    async def script(recorder: Recorder) -> None:
        whole = encode_batch_item(b"one", b"TAGS\x01a\x02WAIT\x01true") + encode_batch_item(
            b"two", b"", 5
        )

        async def send(
            label: str, body: bytes = whole, code: int = BATCH, **changes: object
        ) -> None:
            fields = recorder.sending(**{"m": "true", "i": "WAIT\x01true", **changes})
            if code == 10:
                fields = {LETTERS[name]: value for name, value in fields.items()}
            await recorder.ask_oddly(label, code, fields, body)

        await send("first")
        for label, body in (
            ("empty", b""), ("short", b"\0\0\0\1"), ("garbage", b"x" * 40), ("cut", whole[:-3]),
            ("less than nothing", b"\xff\xff\xff\xff" + whole), ("and more", whole + b"\0\0"),
            ("delayed", encode_batch_item(b"d", b"DELAY\x015")),
            ("half", encode_batch_item(b"d", b"TRAN_MSG\x01true")),
            ("open end", encode_batch_item(b"d", b"a\x01b\x02")),
        ):  # fmt: skip
            await send(label, body)
        for flags in (1, 8, 12):
            await send(f"flags {flags}", f=flags)
        for properties in ("TRAN_MSG\x01true", "TAGS\x01own", "DELAY\x010", "DELAY\x01x"):
            await send(properties, i=properties)
        retry, several = f"%RETRY%{recorder.scenario.group}", f"m{recorder.scenario.topic}"
        await send("never dead", b=retry, c="none", j=16)
        await send("code of singles", code=SEND_V2)
        await send("old code of singles", code=10)
        kind = topic(several, topicFilterType="MULTI_TAG")
        await recorder.ask("a topic of several tags", PUT_TOPIC, kind)
        await send("of several tags", b=several)
        await recorder.ask("alone", SEND_V2, recorder.sending(b=several), b"alone")
        await recorder.visible(3, several)
        await recorder.visible(16)
        for name in (recorder.scenario.topic, several, retry):
            await recorder.ask("stored", PULL, recorder.pulling(topic=name))

    await same(script)


async def test_numbers_and_flags_of_a_pull(same: Same) -> None:
    async def script(recorder: Recorder) -> None:
        await recorder.fill(4)
        of_group = recorder.queue(consumerGroup=recorder.scenario.group)
        key = {"topic": recorder.scenario.topic, "key": "none", "maxNum": 3, "beginTimestamp": 0}
        key["endTimestamp"] = 1 << 60

        async def pull(label: str, **changes: object) -> None:
            await recorder.ask_oddly(label, PULL, recorder.pulling(**changes))

        for flags in (8, 12, 16, 20, 64, 5):
            await pull(f"flags {flags}", sysFlag=flags, commitOffset=1)
            await recorder.ask(f"stored by {flags}", 14, of_group)
        for value in (None, "", "x", -1, 1 << 40):
            for name in ("sysFlag", "maxMsgNums", "queueOffset", "subVersion"):
                await pull(f"{name} {value}", **{name: value})
            await pull(f"commit {value}", sysFlag=5, commitOffset=value)
            await recorder.ask(f"stored by {value}", 14, of_group)
            await pull(f"wait {value}", sysFlag=SUSPEND | SUBSCRIPTION, suspendTimeoutMillis=value)
            asked = {
                14: {**of_group, "queueId": value}, 15: {**of_group, "commitOffset": value},
                29: recorder.queue() | {"timestamp": value}, 30: {**of_group, "queueId": value},
                33: {"offset": value}, 12: {**key, "maxNum": value},
            }  # fmt: skip
            for code, fields in asked.items():
                await recorder.ask_oddly(f"{code} {value}", code, text(fields))
            await recorder.ask(f"stored by 15 {value}", 14, of_group)
        for wait_ms in (0, -5, 1):
            flags = SUSPEND | SUBSCRIPTION
            await pull(f"{wait_ms} ms", suspendTimeoutMillis=wait_ms, sysFlag=flags, queueOffset=4)
        nowhere = {"topic": "none", "queueId": "-3", "timestamp": "5", "consumerGroup": "none"}
        for code in (14, 29, 31, 32):
            await recorder.ask(f"{code} of nothing", code, nowhere)

    await same(script)


async def test_what_is_wanted(same: Same) -> None:
    async def script(recorder: Recorder) -> None:
        scenario, retry = recorder.scenario, f"%RETRY%{recorder.scenario.group}"
        await recorder.fill(4)
        again = recorder.sending(b=retry, c="none", j=1, i="n\x011")
        await recorder.ask("again", SEND_V2, again, b"again")
        await recorder.visible(1, retry)

        async def pull(label: str, **changes: object) -> None:
            await recorder.ask(label, PULL, recorder.pulling(**changes))

        async def beat(label: str, *wanted: dict[str, Any], name: str = scenario.topic) -> None:
            await recorder.client.beat(heartbeat("me", [consumer(scenario.group, *wanted)]))
            await pull(label, topic=name, sysFlag=0, subVersion=1, subscription=None)

        for kind in (None, "TAG", "SQL92", "XPATH", "sql92", "tag"):
            for wanted in ("*", "a||", "||a", "a | b", "n > 1", "n >", "TRUE", "NULL", "|", None):
                await pull(f"{kind} {wanted}", expressionType=kind, subscription=wanted)
        for wanted in (
            "n = '1' junk",
            "NOT n = 1",
            "n IN ('1','2')",
            "x IS NULL",
            "n",
            "TAGS <> 'a'",
        ):
            await pull(wanted, expressionType="SQL92", subscription=wanted)
            asked = {
                "clientId": "me",
                "group": scenario.group,
                "subscriptionData": sql("t", wanted),
            }
            await recorder.ask(f"46 {wanted}", CHECK_CLIENT, {}, msgspec.json.encode(asked))
        for wanted in ("n > 4", "n >", "n = '1'"):
            await pull(f"again {wanted}", topic=retry, expressionType="SQL92", subscription=wanted)
        await beat("a filter class", tags(scenario.topic, classFilterMode=True, subString="x.Y"))
        await beat("again by an expression", sql(retry, "n > 4"), name=retry)
        for kind in ("", "XPATH"):
            await beat(f"type {kind}", tags(scenario.topic, expressionType=kind, codeSet=[97]))
        await beat("blank", tags(scenario.topic, 8, subString=""))
        await beat("a blank expression", sql(scenario.topic, "", 11))

    await same(script)


async def test_settings_of_topics_and_groups(same: Same) -> None:
    async def script(recorder: Recorder) -> None:
        scenario = recorder.scenario
        for perm in (2, 4, 0, 7, 15):
            name = f"p{perm}{scenario.topic}"
            await recorder.ask(f"perm {perm}", PUT_TOPIC, topic(name, perm=perm))
            await recorder.ask(f"send {perm}", SEND_V2, recorder.sending(b=name), b"x")
            await recorder.visible(1, name)
            await recorder.ask(f"pull {perm}", PULL, recorder.pulling(topic=name))
        for reads, writes in ((1, 4), (4, 1)):
            name = f"r{reads}{scenario.topic}"
            sizes = {"readQueueNums": reads, "writeQueueNums": writes}
            await recorder.ask(f"{sizes}", PUT_TOPIC, topic(name, **sizes))
            await recorder.ask("send", SEND_V2, recorder.sending(b=name, e=3), b"x")
            await recorder.visible(1, name, 3)
            for queue in (1, 3):
                await recorder.ask("pull", PULL, recorder.pulling(topic=name, queueId=queue))
        for name in ("rmq_sys_x", "broker-a", "DefaultCluster_REPLY_TOPIC", "OFFSET_MOVED_EVENT"):
            await recorder.ask(name, PUT_TOPIC, topic(name))
            await recorder.ask(name, 215, {"topic": name})
        for change in (
            {"topicFilterType": "X"}, {"topicFilterType": None}, {"perm": None}, {"perm": "x"},
            {"readQueueNums": None}, {"topicSysFlag": None}, {"topicSysFlag": 3},
            {"defaultTopic": None}, {"order": None}, {"order": "true"},
        ):  # fmt: skip
            await recorder.ask_oddly(
                f"{change}", PUT_TOPIC, topic(f"odd{scenario.topic}", **change)
            )
            await made(recorder, f"odd{scenario.topic}")
        sent = await scenario.send(recorder.client, b"bad")
        offset = str(int(sent["msgId"][16:], 16))
        for label, settings in (
            ("idle", {"consumeEnable": False}), ("0", {"retryQueueNums": 0}),
            ("less", {"retryQueueNums": -1}), ("3", {"retryQueueNums": 3}),
            ("max0", {"retryMaxTimes": 0}), ("max", {"retryMaxTimes": -1}),
            ("alone", {"consumeBroadcastEnable": False}), ("odd", {"retryMaxTimes": "5"}),
        ):  # fmt: skip
            group = f"{label}{scenario.group}"
            told = msgspec.json.encode({"groupName": group, **settings})
            await recorder.ask(label, PUT_GROUP, {}, told)
            back = {"offset": offset, "group": group, "delayLevel": "0"}
            await recorder.ask(f"back {label}", SEND_BACK, back)
            again = recorder.sending(b=f"%RETRY%{group}", c="none", j=1)
            await recorder.ask(f"again {label}", SEND_V2, again, b"x")
            model = "BROADCASTING" if label == "alone" else "CLUSTERING"
            wanted = consumer(group, tags(scenario.topic), messageModel=model)
            await recorder.client.beat(heartbeat("me", [wanted]))
            of_group = recorder.pulling(consumerGroup=group, queueId=1)
            for flags in ("0", "4"):
                await recorder.ask(f"pull {label} {flags}", PULL, {**of_group, "sysFlag": flags})
            await made(recorder, f"%RETRY%{group}", f"%DLQ%{group}")

    await same(script)


async def test_ends_of_transactions(same: Same) -> None:
    async def script(recorder: Recorder) -> None:
        producers = "PGROUP\x01payers\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x013600"

        async def half(**changes: object) -> dict[str, Any]:
            properties = f"TRAN_MSG\x01true\x02{producers}"
            fields = recorder.sending(**{"f": 4, "i": properties, **changes})
            answer = await recorder.client.ask(SEND_V2, fields, b"half")
            return {
                "producerGroup": "payers",
                "tranStateTableOffset": answer.fields["queueOffset"],
                "commitLogOffset": int(answer.fields["msgId"][16:], 16),
                "commitOrRollback": 8,
            }

        async def end(label: str, how: dict[str, Any], **changes: object) -> None:
            await recorder.ask_oddly(label, END, text({**how, **changes}))

        first = await half()
        for name, value in (
            *product(("commitOrRollback",), (3, 4, -8, "x", None)),
            *product(("producerGroup",), ("none", None)),
            *product(("tranStateTableOffset",), (10**6, None)),
            *product(("commitLogOffset",), (1 << 50, -1, None)),
        ):
            await end(f"{name} {value}", first, **{name: value})
        # Each is ended once: Java's broker carries out every repetition, ours none.
        await end("8", first)
        await end("12", await half(f=5, h=3, j=2), commitOrRollback=12)
        for label, changes in (
            ("flags", {"f": 4 | 2 | 64, "h": -3, "e": 3}), ("no flag", {"f": 0}), ("12", {"f": 12}),
            ("nobody's", {"i": "TRAN_MSG\x01true"}),
            ("in capitals", {"i": f"TRAN_MSG\x01TRUE\x02{producers}\x02WAIT\x01false"}),
        ):  # fmt: skip
            await end(label, await half(**changes))
        await end("no half message", await half(i=producers, f=0))
        for identity in (None, "", "junk", "x" * 32):
            await recorder.ask(f"323 {identity}", RESUME, text({"msgId": identity}))
        await recorder.visible(5)
        for queue in (0, 3):
            await recorder.ask("stored", PULL, recorder.pulling(queueId=queue))

    await same(script)


@asynccontextmanager
async def setting(
    recorder: Recorder, name: str, value: object, before: object
) -> AsyncIterator[None]:
    """The broker is set so for a while."""

    async def put(now: object) -> None:
        answer = await recorder.client.ask(PUT_SETTINGS, {}, f"{name}={now}".encode())
        assert answer.code == 0

    await put(value)
    try:
        yield
    finally:
        await put(before)


async def test_permissions_of_a_broker(same: Same) -> None:
    async def script(recorder: Recorder) -> None:
        scenario = recorder.scenario
        await recorder.fill(4)
        sent = await scenario.send(recorder.client, b"bad")
        back = {"offset": str(int(sent["msgId"][16:], 16)), "delayLevel": "-1"}
        end = 5
        for perm in (4, 2, 0):
            async with setting(recorder, "brokerPermission", perm, 6):
                for label, code, changes in (
                    ("send", SEND_V2, {}),
                    ("new", SEND_V2, {"b": f"new{perm}{scenario.topic}"}),
                    ("reply", REPLY_V2, {"i": "REPLY_TO_CLIENT\x01gone"}),
                ):
                    fields = recorder.sending(**changes)
                    answer = await recorder.ask(f"{label} {perm}", code, fields, b"x")
                    if label != "new":
                        end = int(answer.fields.get("queueOffset", end - 1)) + 1
                await recorder.visible(end)
                one = recorder.pulling(queueOffset=4, maxMsgNums=1)
                await recorder.ask(f"pull {perm}", PULL, one)
                for group in (scenario.group, f"never{scenario.group}"):
                    await recorder.ask(f"back {perm}", SEND_BACK, {**back, "group": group})
        for body in (b"a=\\u00zz", b"=", b"junk", b"brokerPermission=x"):
            await recorder.ask(f"{body!r}", PUT_SETTINGS, {}, body)
        await recorder.ask("as before", SEND_V2, recorder.sending(b=f"last{scenario.topic}"), b"x")

    await same(script)


async def test_a_broker_that_makes_no_groups(same: Same) -> None:
    async def script(recorder: Recorder) -> None:
        unknown = f"unknown{recorder.scenario.group}"
        sent = await recorder.scenario.send(recorder.client, b"bad")
        back = {"offset": str(int(sent["msgId"][16:], 16)), "delayLevel": "1", "group": unknown}
        await recorder.visible(1)
        async with setting(recorder, "autoCreateSubscriptionGroup", "false", "true"):
            await recorder.ask("pull", PULL, recorder.pulling(consumerGroup=unknown))
            await recorder.ask("pull", PULL, recorder.pulling(consumerGroup="CID_RMQ_SYS_X"))
            await recorder.ask("back", SEND_BACK, back)
            again = recorder.sending(b=f"%RETRY%{unknown}", c="none", j=1)
            await recorder.ask("again", SEND_V2, again, b"x")
            beat = heartbeat("me", [consumer(unknown, tags(recorder.scenario.topic))])
            await recorder.ask("heartbeat", HEARTBEAT, {}, msgspec.json.encode(beat))
            await recorder.ask("members", 38, {"consumerGroup": unknown})
            await made(recorder, f"%RETRY%{unknown}")

    await same(script)


async def test_filters_of_what_comes_back(same: Same) -> None:
    async def script(recorder: Recorder) -> None:
        scenario, retry = recorder.scenario, f"%RETRY%{recorder.scenario.group}"
        await recorder.scenario.send(recorder.client)
        data = heartbeat(
            "me", [consumer(scenario.group, sql(scenario.topic, "n > 1"), tags(retry))]
        )
        await recorder.client.beat(data)
        for n, origin in ((0, scenario.topic), (5, scenario.topic), (0, "other")):
            properties = f"n\x01{n}\x02RETRY_TOPIC\x01{origin}"
            await recorder.ask(
                "again", SEND_V2, recorder.sending(b=retry, c="none", i=properties), b"x"
            )
        await recorder.visible(3, retry)
        for on in ("true", "false"):
            async with setting(recorder, "filterSupportRetry", on, "false"):
                for label, changes in (
                    ("of the group", {"sysFlag": 0, "subVersion": 1}),
                    ("all", {"subscription": "*"}),
                    ("by a tag", {"subscription": "a"}),
                    ("by a text", {"subscription": "n > 6", "expressionType": "SQL92"}),
                ):
                    fields = recorder.pulling(topic=retry, **changes)
                    await recorder.ask(f"{label} {on}", PULL, fields)

    await same(script)


async def test_a_broker_that_does_without(same: Same) -> None:
    async def script(recorder: Recorder) -> None:
        async def send(label: str, code: int = SEND_V2, **changes: object) -> None:
            await recorder.ask(label, code, recorder.sending(**changes), b"x")

        async def pull(label: str, **changes: object) -> None:
            await recorder.ask(label, PULL, recorder.pulling(**changes))

        await recorder.fill(4)
        async with setting(recorder, "rejectTransactionMessage", "true", "false"):
            await send("half", i="TRAN_MSG\x01true\x02PGROUP\x01p")
        async with setting(recorder, "enablePropertyFilter", "false", "true"):
            for wanted in ("n > 1", "n >", ""):
                await pull("expression", expressionType="SQL92", subscription=wanted)
        async with setting(recorder, "longPollingEnable", "false", "true"):
            flags = SUSPEND | SUBSCRIPTION
            await pull("soon", sysFlag=flags, queueId=1, suspendTimeoutMillis=60_000)
        async with setting(recorder, "traceOn", "false", "true"):
            await send("no trace")
        async with setting(recorder, "startAcceptSendRequestTimeStamp", 4102444800123, 0):
            await send("too early")
        async with setting(recorder, "storeReplyMessageEnable", "false", "true"):
            await send("reply", REPLY_V2, i="REPLY_TO_CLIENT\x01gone")
        group = f"far{recorder.scenario.group}"
        told = msgspec.json.encode({"groupName": group, "brokerId": 3})
        await recorder.ask("group", PUT_GROUP, {}, told)
        for reads in ("true", "false"):
            async with setting(recorder, "slaveReadEnable", reads, "false"):
                await pull(f"far {reads}", consumerGroup=group, maxMsgNums=1)

    await same(script)
