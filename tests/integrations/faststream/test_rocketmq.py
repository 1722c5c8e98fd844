"""Subscribers and publishers of RocketMQ against a node."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.exceptions import (
    FeatureNotSupportedException,
    IncorrectState,
    NackMessage,
    RejectMessage,
    SetupError,
    StopConsume,
)
from faststream.security import SASLPlaintext, SASLScram256

import coherer
from coherer.errors import RequestTimeoutError, UsageError
from coherer.integrations.faststream import (
    RocketMQBroker,
    RocketMQPublishMessage,
    RocketMQResponse,
    RocketMQRouter,
    TestRocketMQBroker,
)
from coherer.integrations.faststream import message as messages
from coherer.integrations.faststream.annotations import RocketMQMessage
from coherer.message import Message
from coherer.rocketmq import Queue
from coherer.testing import embedded_node
from tests.integrations.faststream.received import Received, until


async def test_a_handler_receives_what_is_published(url: str, topic: str) -> None:
    broker, got = RocketMQBroker(url), Received()

    @broker.subscriber(topic, group_id=f"{topic}-group")
    async def handle(body: dict[str, int], message: RocketMQMessage) -> None:
        got.add((body, message))

    async with broker:
        await broker.start()
        receipt = await broker.publish(
            {"id": 1}, topic, key="order-1", tag="new", headers={"a": "b"}
        )
        [(body, message)] = await got.wait(1)
    assert body == {"id": 1}
    assert message.headers["a"] == "b"
    assert message.content_type == "application/json"
    assert (message.raw_message.tag, message.raw_message.keys) == ("new", ("order-1",))
    assert message.message_id == receipt.unique_id


async def test_an_empty_body_and_blank_headers_arrive_as_such(url: str, topic: str) -> None:
    broker, got = RocketMQBroker(url), Received()

    @broker.subscriber(topic)
    async def handle(message: RocketMQMessage) -> None:
        got.add((message.body, message.headers))

    async with broker:
        await broker.start()
        await broker.publish(None, topic, headers={"blank": " ", "none": None, "number": 7})  # type: ignore[dict-item]
        [(body, headers)] = await got.wait(1)
    assert body == b""
    assert headers.keys() == {"number", "correlation_id"}
    assert headers["number"] == "7"


async def test_a_result_is_published_and_a_reply_topic_gets_it_too(url: str, topic: str) -> None:
    broker, results, replies = RocketMQBroker(url), Received(), Received()

    @broker.subscriber(topic, group_id=f"{topic}-group")
    @broker.publisher(f"{topic}-results", tag="done", headers={"from": "publisher"})
    async def handle(number: int) -> RocketMQResponse:
        return RocketMQResponse(number + 1, headers={"mine": "1"}, keys=("k",))

    @broker.subscriber(f"{topic}-results")
    async def result(number: int, message: RocketMQMessage) -> None:
        results.add((number, message))

    @broker.subscriber(f"{topic}-replies")
    async def reply(number: int, message: RocketMQMessage) -> None:
        replies.add((number, message))

    async with broker:
        await broker.start()
        await broker.publish(1, topic, reply_to=f"{topic}-replies", correlation_id="c")
        [(number, message)] = await results.wait(1)
        [(replied, answer)] = await replies.wait(1)
    assert (number, replied) == (2, 2)
    assert message.raw_message.tag == "done"
    assert message.raw_message.keys == ("k",)
    assert message.headers["from"] == "publisher"
    assert message.correlation_id == answer.correlation_id == "c"


async def test_a_request_is_answered_with_the_result(url: str, topic: str) -> None:
    broker = RocketMQBroker(url)
    publisher = broker.publisher(topic)

    @broker.subscriber(topic, group_id=f"{topic}-group")
    async def handle(number: int) -> RocketMQResponse:
        return RocketMQResponse(number * 2, headers={"h": "1"})

    async with broker:
        await broker.start()
        answer = await broker.request(21, topic, timeout=20, correlation_id="c")
        assert await answer.decode() == 42
        assert (answer.headers["h"], answer.correlation_id) == ("1", "c")
        assert await (await publisher.request(4, timeout=20)).decode() == 8


async def test_a_request_without_a_handler_times_out(url: str, topic: str) -> None:
    async with RocketMQBroker(url) as broker:
        with pytest.raises(RequestTimeoutError, match="No reply in time"):
            await broker.request(1, topic, timeout=0.001)


async def test_no_reply_leaves_requests_unanswered(url: str, topic: str) -> None:
    broker, got = RocketMQBroker(url), Received()

    @broker.subscriber(topic, group_id=f"{topic}-group", no_reply=True)
    async def handle(number: int) -> int:
        got.add(number)
        return number

    async with broker:
        await broker.start()
        with pytest.raises(RequestTimeoutError):
            await broker.request(1, topic, timeout=0.2)
        assert await got.wait(1) == [1]


async def test_a_reply_that_nobody_waits_for_is_dropped(
    url: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker, got, leave = RocketMQBroker(url), Received(), asyncio.Event()

    @broker.subscriber(topic, group_id=f"{topic}-group", batch_messages=1)
    async def handle(number: int) -> int:
        got.add(number)
        await leave.wait()
        return number

    async with broker:
        await broker.start()
        async with RocketMQBroker(url) as asking:
            with pytest.raises(RequestTimeoutError):
                await asking.request(1, topic, timeout=0.1)
            await got.wait(1)
        leave.set()
        await until(lambda: "The reply to a request is dropped" in caplog.text)
        await broker.publish(2, topic)
        assert await got.wait(2) == [1, 2]


GARBAGE = [
    (b"\xff\xfe", {"content-type": "application/json"}),
    (b"[" * 100_000, {"content-type": "application/json"}),
    (b"\xff", {"content-type": "text/plain"}),
    (b"1", {"content-type": "nonsense/x; y=z"}),
    (b"x", {"content-type": "application/json", "content-length": "0"}),
    (b"1", {"reply_to": "no such topic!"}),
    (b"1", {"reply_to": "x" * 300}),
    (b"1", {"correlation_id": "é\n" * 100}),
]


async def test_what_only_an_attacker_sends_stops_no_subscriber(url: str, topic: str) -> None:
    broker, got, batches = RocketMQBroker(url), Received(), Received()

    @broker.subscriber(topic, group_id=f"{topic}-one", start="earliest")
    async def handle(number: int) -> int:
        got.add(number)
        return number

    @broker.subscriber(
        topic, group_id=f"{topic}-all", start="earliest", batch=True, batch_messages=1
    )
    async def handle_all(numbers: list[int]) -> None:
        batches.add(numbers[-1])

    async with broker:
        await broker.start()
        async with coherer.connect(url) as client, client.producer() as producer:
            for body, headers in GARBAGE:
                await producer.send(Message(topic, body, properties=headers))
        await broker.publish(42, topic)
        await until(lambda: 42 in got and 42 in batches)


async def test_applications_that_start_at_once_create_a_topic_once(
    url: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    brokers = [RocketMQBroker(url) for _ in range(5)]
    for broker in brokers:
        broker.subscriber(topic, group_id=f"{topic}-group")(lambda body: None)
    await asyncio.gather(*(broker.start() for broker in brokers))
    await asyncio.gather(*(broker.stop() for broker in brokers))
    assert "could not be created" not in caplog.text


# -- acknowledgement


@pytest.mark.parametrize("how", ["nack", "NackMessage"])
async def test_a_failed_message_is_delivered_again(url: str, topic: str, how: str) -> None:
    broker, attempts = RocketMQBroker(url), Received()

    @broker.subscriber(topic, group_id=f"{topic}-group")
    async def handle(body: str, message: RocketMQMessage) -> None:
        attempts.add(message.raw_message.attempt)
        if len(attempts) > 1:
            return
        if how == "nack":
            await message.nack(later=timedelta(seconds=1), reason="not yet")
        else:
            raise NackMessage(later=timedelta(seconds=1))

    async with broker:
        await broker.start()
        await broker.publish("x", topic)
        assert await attempts.wait(2) == [0, 1]


@pytest.mark.parametrize("how", ["reject", "RejectMessage", "policy"])
async def test_a_rejected_message_is_a_dead_letter(url: str, topic: str, how: str) -> None:
    broker, got = RocketMQBroker(url), Received()
    policy = AckPolicy.REJECT_ON_ERROR if how == "policy" else AckPolicy.NACK_ON_ERROR

    @broker.subscriber(topic, group_id=f"{topic}-group", ack_policy=policy)
    async def handle(body: str, message: RocketMQMessage) -> None:
        got.add(body)
        if how == "reject":
            await message.reject(reason="broken")
        elif how == "RejectMessage":
            raise RejectMessage(reason="broken")
        else:
            raise ValueError("broken")

    async with broker:
        await broker.start()
        await broker.publish("x", topic)
        await got.wait(1)
    async with coherer.connect(url) as client:
        dead = client.consumer("readers", f"%DLQ%{topic}-group", start="earliest")  # type: ignore[union-attr]
        async with dead:
            batch = await dead.receive(timeout_ms=30_000)
    assert batch is not None
    assert [message.body for message in batch] == [b"x"]


async def test_manual_messages_wait_for_their_acknowledgement(url: str, topic: str) -> None:
    first, second = Received(), Received()

    async def deliver(got: Received, *, ack: bool) -> None:
        broker = RocketMQBroker(url)

        @broker.subscriber(
            topic, group_id=f"{topic}-group", start="earliest", ack_policy=AckPolicy.MANUAL
        )
        async def handle(body: str, message: RocketMQMessage) -> None:
            if ack:
                await message.ack()
            got.add(body)

        async with broker:
            await broker.start()
            await broker.publish("x" if not first else "y", topic)
            await got.wait(2 if first else 1)

    await deliver(first, ack=False)
    await deliver(second, ack=True)
    assert sorted(second) == ["x", "y"]


async def test_what_a_cancelled_handler_had_is_delivered_again(url: str, topic: str) -> None:
    started, got = asyncio.Event(), Received()
    options: dict[str, Any] = {"group_id": f"{topic}-group", "start": "earliest"}
    slow, fast = RocketMQBroker(url, graceful_timeout=0.01), RocketMQBroker(url)

    @slow.subscriber(topic, max_workers=2, **options)
    async def hang(body: str) -> None:
        started.set()
        await asyncio.Event().wait()

    @fast.subscriber(topic, **options)
    async def handle(body: str) -> None:
        got.add(body)

    async with slow:
        await slow.start()
        await slow.publish("x", topic)
        await started.wait()
    async with fast:
        await fast.start()
        assert await got.wait(1) == ["x"]


async def test_stop_waits_for_handlers_and_acknowledges(url: str, topic: str) -> None:
    started, finish, got = asyncio.Event(), asyncio.Event(), Received()
    broker, later = RocketMQBroker(url), RocketMQBroker(url)
    options: dict[str, Any] = {"group_id": f"{topic}-group", "start": "earliest"}

    @broker.subscriber(topic, **options)
    async def handle(body: str) -> None:
        started.set()
        await finish.wait()

    @later.subscriber(topic, **options)
    async def rest(body: str) -> None:
        got.add(body)

    await broker.start()
    await broker.publish("first", topic)
    await broker.publish("second", topic)
    await started.wait()
    stopping = asyncio.create_task(broker.stop())
    await until(lambda: not broker.subscribers[0].running)
    finish.set()
    await stopping
    async with later:
        await later.start()
        await later.publish("third", topic)
        assert sorted(await got.wait(2)) == ["second", "third"]


@pytest.mark.parametrize("workers", [1, 4])
async def test_stop_consume_stops_the_subscriber_only(url: str, topic: str, workers: int) -> None:
    broker, got = RocketMQBroker(url), Received()

    @broker.subscriber(topic, group_id=f"{topic}-group", max_workers=workers)
    async def handle(body: str) -> None:
        raise StopConsume

    @broker.subscriber(f"{topic}-other")
    async def other(body: str) -> None:
        got.add(body)

    async with broker:
        await broker.start()
        await broker.publish("x", topic)
        stopped = next(one for one in broker.subscribers if topic in one.topics)  # type: ignore[attr-defined]
        await until(lambda: stopped.consumer is None)  # type: ignore[attr-defined]
        await broker.publish("y", f"{topic}-other")
        assert await got.wait(1) == ["y"]


async def test_nothing_is_left_running_after_stop(url: str, topic: str) -> None:
    before = asyncio.all_tasks()
    broker = RocketMQBroker(url)

    @broker.subscriber(topic, group_id=f"{topic}-group", max_workers=4)
    async def handle(body: str) -> None: ...

    @broker.subscriber(topic)
    async def every(body: str) -> None: ...

    for _ in range(2):  # a broker can be started again
        await broker.start()
        await broker.publish("x", topic)
        await broker.stop()
    assert asyncio.all_tasks() == before


# -- receiving


async def test_members_of_a_group_share_and_others_receive_all(url: str, topic: str) -> None:
    shared, everything = Received(), Received()
    brokers = [RocketMQBroker(url) for _ in range(2)]
    for broker in brokers:

        @broker.subscriber(topic, group_id=f"{topic}-group")
        async def share(number: int) -> None:
            shared.add(number)

        @broker.subscriber(topic)
        async def each(number: int) -> None:
            everything.add(number)

    async with brokers[0], brokers[1]:
        for broker in brokers:
            await broker.start()
        for number in range(20):
            await brokers[0].publish(number, topic)
        assert sorted(await everything.wait(40)) == sorted([*range(20), *range(20)])
        await until(lambda: set(shared) == set(range(20)))


@pytest.mark.parametrize(
    "selection", [{"tags": "a || b"}, {"tags": ["a", "b"]}, {"sql92": "n <= 2"}]
)
async def test_a_filter_selects_messages(url: str, topic: str, selection: dict[str, Any]) -> None:
    broker, got = RocketMQBroker(url), Received()

    @broker.subscriber(topic, group_id=f"{topic}-group", **selection)
    async def handle(number: int) -> None:
        got.add(number)

    async with broker:
        await broker.start()
        for number, tag in enumerate("acb", 1):
            number = {1: 1, 2: 3, 3: 2}[number]
            await broker.publish(number, topic, tag=tag, headers={"n": str(number)})
        assert sorted(await got.wait(2)) == [1, 2]


async def test_max_workers_bounds_the_running_handlers(url: str, topic: str) -> None:
    broker, got, finish = RocketMQBroker(url), Received(), asyncio.Event()
    counts = [0, 0]

    @broker.subscriber(topic, group_id=f"{topic}-group", max_workers=3)
    async def handle(number: int) -> None:
        counts[0] += 1
        counts[1] = max(counts)
        if counts[0] == 3:
            finish.set()
        await finish.wait()
        counts[0] -= 1
        got.add(number)

    async with broker:
        await broker.start()
        for number in range(12):
            await broker.publish(number, topic)
        assert sorted(await got.wait(12)) == list(range(12))
    assert counts[1] == 3


async def test_orderly_messages_wait_for_the_failed_one(url: str, topic: str) -> None:
    broker, got = RocketMQBroker(url), Received()

    @broker.subscriber(topic, group_id=f"{topic}-group", orderly=True, suspend_ms=10, max_workers=4)
    async def handle(number: int) -> None:
        got.add(number)
        if got.count(2) == 1 and number == 2:
            raise ValueError("once")

    async with broker:
        await broker.start()
        for number in range(5):
            await broker.publish(number, topic, key="one")
        assert await got.wait(6) == [0, 1, 2, 2, 3, 4]


async def test_a_batch_is_received_and_settled_at_once(url: str, topic: str) -> None:
    broker, got = RocketMQBroker(url), Received()

    @broker.subscriber(topic, group_id=f"{topic}-group", batch=True, batch_messages=3)
    async def handle(numbers: list[int], message: RocketMQMessage) -> None:
        got.add(numbers)
        assert [one["n"] for one in message.batch_headers] == [str(one) for one in numbers]
        if len(got) == 1:
            await message.nack(later=timedelta(seconds=1))

    async with broker:
        await broker.start()
        await broker.publish_batch(
            *(
                RocketMQPublishMessage(number, headers={"n": str(number)}, tag="t", key=str(number))
                for number in range(3)
            ),
            topic=topic,
        )
        # Brokers may answer a pull with a part of the batch: all of that part comes again.
        while sum(map(len, got)) < 3 + len(got[0] if got else []) or not got:
            await got.wait(len(got) + 1)
    assert sorted(number for numbers in got[1:] for number in numbers) == [0, 1, 2]


async def test_get_one_and_iteration_without_handlers(url: str, topic: str) -> None:
    broker = RocketMQBroker(url)
    subscriber = broker.subscriber(topic, group_id=f"{topic}-group")
    async with broker:
        await broker.start()
        assert await subscriber.get_one(timeout=0.001) is None
        for number in range(3):
            await broker.publish(number, topic, key="k")
        first = await subscriber.get_one(timeout=30)
        assert first is not None
        assert await first.decode() == 0
        rest = []
        async for message in subscriber:
            rest.append(await message.decode())
            if len(rest) == 2:
                break
        assert rest == [1, 2]


# -- publishing


async def test_a_message_is_delivered_later(url: str, topic: str) -> None:
    broker, got = RocketMQBroker(url), Received()

    @broker.subscriber(topic, group_id=f"{topic}-group")
    async def handle(message: RocketMQMessage) -> None:
        got.add(message.raw_message.stored_ms - message.raw_message.born_ms)

    async with broker:
        await broker.start()
        await broker.publish("later", topic, delay=timedelta(seconds=1))
        [waited_ms] = await got.wait(1)
    assert waited_ms >= 900


async def test_one_queue_or_no_confirmation(url: str, topic: str) -> None:
    async with RocketMQBroker(url) as broker:
        receipt = await broker.publish("x", topic)
        queue = Queue(topic, receipt.broker, 2)
        assert (await broker.publish("y", topic, queue=queue)).partition == 2
        future = await broker.publish("z", topic, no_confirm=True, timestamp_ms=0)
        assert (await future).topic == topic


async def test_publishers_have_defaults(url: str, topic: str) -> None:
    router = RocketMQRouter(prefix="team-")
    one = router.publisher(topic, key="k", tag="t", headers={"h": "1"})
    several = router.publisher(topic, batch=True, tag="batch")
    broker, got = RocketMQBroker(url, routers=[router]), Received()

    @broker.subscriber(f"team-{topic}")
    async def handle(body: str, message: RocketMQMessage) -> None:
        got.add((body, message.raw_message.tag, message.raw_message.keys))

    async with broker:
        await broker.start()
        await one.publish("a")
        await one.publish("b", key="other", tag="u")
        await several.publish("c", "d")
        found = await got.wait(4)
    assert sorted(found) == [
        ("a", "t", ("k",)),
        ("b", "u", ("other",)),
        ("c", "batch", ()),
        ("d", "batch", ()),
    ]
    with pytest.raises(FeatureNotSupportedException):
        await several.request("e")


async def test_an_empty_message_of_a_batch_keeps_its_place(url: str, topic: str) -> None:
    broker, got = RocketMQBroker(url), Received()

    @broker.subscriber(topic, group_id=f"{topic}-group", start="earliest", batch=True)
    async def handle(message: RocketMQMessage) -> None:
        for body, headers in zip(message.body, message.batch_headers, strict=True):
            got.add((body, headers.get("of")))

    async with broker:
        await broker.start()
        assert await broker.publish_batch(topic=topic) == []
        second = RocketMQPublishMessage("b", headers={"of": "b"})
        await broker.publish_batch(None, second, None, "c", topic=topic)
        assert await got.wait(4) == [(b"", None), (b"b", "b"), (b"", None), (b"c", None)]


async def test_a_response_with_a_list_is_published_as_a_batch(url: str, topic: str) -> None:
    broker, got = RocketMQBroker(url), Received()

    @broker.subscriber(topic, group_id=f"{topic}-group", start="earliest")
    @broker.publisher(f"{topic}-results", batch=True, keys=["k"])
    async def handle(count: int) -> RocketMQResponse:
        special = RocketMQPublishMessage("special", headers={"mine": "2"}, tag="t")
        return RocketMQResponse([*range(count), special], headers={"mine": "1"})  # type: ignore[list-item]

    @broker.subscriber(f"{topic}-results", group_id=f"{topic}-results", start="earliest")
    async def result(body: Any, message: RocketMQMessage) -> None:
        raw = message.raw_message
        got.add((body, message.headers["mine"], raw.tag, raw.keys))

    async with broker:
        await broker.start()
        await broker.publish(2, topic)
        assert await got.wait(3) == [
            (0, "1", None, ("k",)),
            (1, "1", None, ("k",)),
            ("special", "2", "t", ("k",)),
        ]


def test_keys_are_words() -> None:
    broker = RocketMQBroker()
    with pytest.raises(UsageError, match=r"Write keys=\('order-1',\) for one"):
        broker.publisher("topic", keys="order-1")
    with pytest.raises(UsageError, match="several words"):
        RocketMQResponse("body", keys="order-1")


async def test_a_batch_cannot_be_delayed(url: str, topic: str) -> None:
    async with RocketMQBroker(url) as broker:
        with pytest.raises(FeatureNotSupportedException, match="one by one"):
            await broker.publish_batch("a", "b", topic=topic, delay=timedelta(seconds=1))


# -- the broker


async def test_ping_tells_whether_a_server_answers() -> None:
    with embedded_node() as node:
        async with RocketMQBroker(node.rocketmq_url, timeout_ms=1_000) as broker:
            assert await broker.ping(timeout=30)
            node.stop()
            assert not await broker.ping(timeout=0.05)


async def test_a_subscriber_that_cannot_join_does_not_start(topic: str) -> None:
    """A name server that accepts the connection and does not answer."""
    served = list[asyncio.StreamWriter]()
    silent = await asyncio.start_server(lambda _, writer: served.append(writer), "127.0.0.1", 0)
    host, port = silent.sockets[0].getsockname()
    broker = RocketMQBroker(f"rocketmq://{host}:{port}", timeout_ms=50)
    subscriber = broker.subscriber(topic, group_id=f"{topic}-group")
    try:
        async with broker:
            with pytest.raises(RequestTimeoutError):
                await broker.start()
    finally:
        silent.close()
        for writer in served:
            writer.close()
            await writer.wait_closed()
    assert served
    assert subscriber.consumer is None


async def test_publishing_needs_a_connection(url: str, topic: str) -> None:
    with pytest.raises(IncorrectState, match="connect"):
        await RocketMQBroker(url).publish("x", topic)


async def test_two_subscribers_cannot_share_a_group_of_one_broker(url: str, topic: str) -> None:
    broker = RocketMQBroker(url)
    for name in ("a", "b"):

        @broker.subscriber(f"{topic}-{name}", group_id=f"{topic}-group")
        async def handle(body: str) -> None: ...

    async with broker:
        with pytest.raises(SetupError, match="have the same group"):
            await broker.start()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tags": "a", "sql92": "a = 1"}, "not by both"),
        ({"orderly": True, "batch_messages": 8}, "batch=True"),
        ({"max_workers": 0}, "1 or more"),
        ({"gruop_id": "g"}, "Do you mean group_id"),
    ],
)
def test_subscribers_refuse_contradictions(options: dict[str, Any], text: str) -> None:
    with pytest.raises(SetupError, match=text):
        RocketMQBroker().subscriber("topic", **options)


def test_brokers_routers_and_publishers_refuse_unknown_options() -> None:
    with pytest.raises(SetupError, match="Do you mean namespace"):
        RocketMQBroker(namespce="x")  # type: ignore[call-arg]
    with pytest.raises(SetupError, match="router"):
        RocketMQRouter(group_id="x")  # type: ignore[call-arg]
    with pytest.raises(SetupError, match="publisher"):
        RocketMQBroker().publisher("topic", delay=timedelta(1))  # type: ignore[call-overload]
    with pytest.raises(SetupError, match="needs a topic"):
        RocketMQBroker().subscriber()


async def test_an_argument_of_a_plain_class_names_the_annotation() -> None:
    broker = RocketMQBroker()

    @broker.subscriber("topic")
    async def handle(message: messages.RocketMQMessage) -> None: ...

    with pytest.raises(SetupError, match="annotations import RocketMQMessage"):
        async with TestRocketMQBroker(broker):
            pass


def test_security_is_user_and_password() -> None:
    RocketMQBroker(security=SASLPlaintext("user", "password", use_ssl=True))
    with pytest.raises(SetupError, match="SASLPlaintext"):
        RocketMQBroker(security=SASLScram256("user", "password"))
