"""Half messages by the thousand, and their ends."""

from __future__ import annotations

import pickle
from collections import Counter

import pytest

from coherer._client.rocketmq.client import Client
from coherer._client.rocketmq.transactions import Verdict
from coherer._net import Connection
from coherer._record import layout
from coherer._record import properties as text
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.delivery import MessageBatch
from coherer._wire.rocketmq.headers import EndTransactionHeader, parse
from coherer._wire.rocketmq.names import FEATURE_ENDS_ONCE, FEATURES, Queue
from coherer.errors import ClosedError, RefusedError, UnavailableError, UsageError
from coherer.message import Message
from coherer.rocketmq import HalfMessages, connect

SEND = RequestCode.SEND_MESSAGE_V2
END = RequestCode.END_TRANSACTION


def unknown(message) -> Verdict:
    del message
    return Verdict.UNKNOWN


def ends(cluster) -> list[EndTransactionHeader]:
    return [parse(EndTransactionHeader, asked.fields) for asked in cluster.asked(END)]


async def test_half_messages_are_ended_by_another_producer(cluster, client: Client) -> None:
    messages = [Message("demo", b"%d" % number) for number in range(20)]
    async with client.producer("demo", group="banks", check=unknown) as producer:
        halves, failed = await producer.two_phase.prepare(messages)
    assert failed == []
    assert len(halves) == 20
    assert halves.group == "banks"
    for half in cluster.asked(SEND):
        assert half.send.sys_flag == 4
        properties = text.decode(half.send.properties.encode())
        assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", "banks")
    halves = pickle.loads(pickle.dumps(halves))
    async with client.producer(group="others") as producer:
        assert await producer.two_phase.end(halves, Verdict.COMMIT, window=3) == []
    assert {end.producer_group for end in ends(cluster)} == {"banks"}
    assert Counter(end.commit_or_rollback for end in ends(cluster)) == {8: 20}
    told = [(end.tran_state_table_offset, end.commit_log_offset) for end in ends(cluster)]
    assert told == list(zip(halves.half_offsets, halves.log_offsets, strict=True))


async def test_failed_messages_and_requests_to_end_them(cluster, kit, client: Client) -> None:
    cluster.always(SEND, kit.refuse(13, "illegal"))
    async with client.producer("demo", check=unknown) as producer:
        halves, failed = await producer.two_phase.prepare(
            [Message("demo", b"x"), Message("demo", b"y")]
        )
        assert len(halves) == 0
        assert [(message.body, error.code) for message, error in failed] == [(b"x", 13), (b"y", 13)]
    cluster.script(END, kit.refuse(1, "Find prepared transaction message failed"))
    [queue, *_] = await client.partitions("demo")
    halves = HalfMessages("g", (queue,), [0, 0, 0], [1, 2, 3], [10, 20, 30])
    async with client.producer("demo") as producer:
        [(number, error)] = await producer.two_phase.end(halves, Verdict.ROLLBACK)
        assert (number, isinstance(error, RefusedError)) == (0, True)
        elsewhere = HalfMessages("g", (Queue("demo", "nowhere", 0),), [0], [1], [10])
        [(number, error)] = await producer.two_phase.end(elsewhere, Verdict.ROLLBACK)
        assert (number, isinstance(error, UnavailableError)) == (0, True)
        with pytest.raises(UsageError, match="COMMIT or ROLLBACK"):
            await producer.two_phase.end(halves, Verdict.UNKNOWN)
        with pytest.raises(UsageError, match="check function"):
            await producer.two_phase.prepare([])


async def test_a_closed_producer_ends_nothing(cluster, client: Client) -> None:
    async with client.producer("demo", check=unknown) as producer:
        halves, _ = await producer.two_phase.prepare([Message("demo", b"x")])
        two_phase = producer.two_phase
    for call in (
        two_phase.end(halves, Verdict.COMMIT),
        two_phase.ends_once(halves),
        two_phase.prepare([]),
    ):
        with pytest.raises(ClosedError):
            await call
    assert cluster.asked(END) == []


@pytest.mark.parametrize(
    "columns", [([0], [1], []), ([0, 0], [1], [2]), ([1], [1], [2]), ([-1], [1], [2])]
)
async def test_columns_that_do_not_fit_together(cluster, client: Client, columns) -> None:
    halves = HalfMessages("g", (Queue("demo", "broker-a", 0),), *columns)
    async with client.producer("demo") as producer:
        with pytest.raises(UsageError, match="half message"):
            await producer.two_phase.end(halves, Verdict.COMMIT)
    assert cluster.asked(END) == []


async def test_a_half_message_that_is_not_safely_stored(cluster, client: Client) -> None:
    fields = {"msgId": "7F00000100002A9F" + "0" * 16, "queueId": "0", "queueOffset": "5"}
    cluster.script(SEND, lambda asked: asked.answer(12, None, fields))
    async with client.producer("demo", check=unknown) as producer:
        halves, [(message, error)] = await producer.two_phase.prepare([Message("demo", b"x")])
    assert len(halves) == 0
    assert message.body == b"x"
    assert "FLUSH_SLAVE_TIMEOUT" in str(error)


async def test_requests_on_a_broken_connection_fail(cluster, client: Client) -> None:
    async with client.producer("demo", check=unknown) as producer:
        halves, _ = await producer.two_phase.prepare([Message("demo", b"x")] * 5)
        cluster.always(END, lambda asked: asked.channel.connection.close())
        failed = await producer.two_phase.end(halves, Verdict.COMMIT)
    assert [number for number, _ in failed] == [0, 1, 2, 3, 4]
    assert all(isinstance(error, UnavailableError) for _, error in failed)


def test_parts_are_joined() -> None:
    one, two = Queue("t", "a", 0), Queue("t", "a", 1)
    first = HalfMessages("g", (one, two), [0, 1], [1, 2], [10, 20])
    second = HalfMessages("g", (two,), [0], [3], [30])
    joined = HalfMessages.joined([HalfMessages(), first, second])
    assert joined.group == "g"
    assert [joined.queues[place] for place in joined.queue] == [one, two, two]
    assert list(joined.pick([2, 0]).half_offsets) == [3, 1]


def test_a_message_names_its_half_message() -> None:
    def record(offset: int, prepared: int) -> bytes:
        return layout.encode(
            "t",
            b"x",
            b"",
            queue_id=0,
            queue_offset=offset,
            physical_offset=900 + offset,
            store_ms=0,
            prepared_offset=prepared,
        )

    batch = MessageBatch(record(0, 0) + record(1, 700), Queue("t", "a", 0))
    assert batch.prepared_offsets() == [0, 700]


async def test_a_commit_without_an_answer_never_arrives_late(
    cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is reset, and those that were not sent in time are not sent."""
    resets: list[Connection] = []
    reset = Connection.reset

    def noted(connection: Connection) -> None:
        resets.append(connection)
        reset(connection)

    monkeypatch.setattr(Connection, "reset", noted)
    cluster.always(END, lambda asked: None)
    async with (
        connect(cluster.url, timeout_ms=100) as client,
        client.producer("demo", group="g", check=unknown) as producer,
    ):
        halves, _ = await producer.two_phase.prepare([Message("demo", b"x")] * 3)
        failed = await producer.two_phase.end(halves, Verdict.COMMIT)
        assert [number for number, _ in failed] == [0, 1, 2]
        assert len(resets) == 1
        assert resets[0].closed
        asked = len(cluster.asked(END))
        failed = await producer.two_phase.end(halves, Verdict.COMMIT, within_ms=-1)
        assert [number for number, _ in failed] == [0, 1, 2]
        assert "nothing was sent" in str(failed[0][1])
        assert len(cluster.asked(END)) == asked
        assert len(await producer.two_phase.end(halves, Verdict.ROLLBACK)) == 3
        assert len(resets) == 1


async def test_brokers_say_whether_they_end_a_half_message_once(cluster, client: Client) -> None:
    async with client.producer("demo", group="g", check=unknown) as producer:
        halves, _ = await producer.two_phase.prepare([Message("demo", b"x")])
        assert not await producer.two_phase.ends_once(halves)
        features = {FEATURES: f"other,{FEATURE_ENDS_ONCE}"}
        cluster.always(RequestCode.HEART_BEAT, lambda asked: asked.answer(fields=features))
        assert await producer.two_phase.ends_once(halves)
        cluster.always(RequestCode.HEART_BEAT, lambda asked: asked.answer())
        assert not await producer.two_phase.ends_once(halves), "the broker was replaced by Java's"
