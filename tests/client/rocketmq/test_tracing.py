from __future__ import annotations

import asyncio

import pytest

from coherer._client.rocketmq.client import Client
from coherer._client.rocketmq.consuming.trace import after_record, before_record
from coherer._client.rocketmq.telemetry import Telemetry
from coherer._client.rocketmq.tracing import Record, Tracer, bodies, record
from coherer._client.rocketmq.transactions import Verdict
from coherer._record import layout
from coherer._record import properties as text
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.headers import CheckTransactionHeader
from coherer.errors import CohererError, DisconnectedError, RefusedError
from coherer.message import Message, ReceivedMessage
from coherer.rocketmq import connect as connect_rocketmq
from coherer.testing import SimulatedNode

SEND = RequestCode.SEND_MESSAGE_V2


def test_records_as_java_writes_them() -> None:
    # docs/protocol/rocketmq.md, section 11:
    # Fields separated by U+0001, each record ended by U+0002, null as its word.
    before = before_record(
        region=None, group="g", request_id="R", message_id="M", attempt=2, keys=("k1", "k2")
    )
    fields = before.removesuffix("\x02").split("\x01")
    del fields[1]  # the time
    assert fields == ["SubBefore", "null", "g", "R", "M", "2", "k1 k2"]
    after = after_record(
        group="g",
        request_id="R",
        message_id="M",
        cost_ms=3,
        success=False,
        keys=(),
        context=4,
    )
    fields = after.removesuffix("\x02").split("\x01")
    del fields[7]
    assert fields == ["SubAfter", "R", "M", "3", "false", "null", "4", "g"]


def test_trace_bodies_are_limited() -> None:
    records = [Record("x" * 50_000, (f"k{number}",)) for number in range(5)]
    found = list(bodies(records))
    assert [len(body) for body, _ in found] == [100_000, 100_000, 50_000]
    assert [keys for _, keys in found] == [("k0", "k1"), ("k2", "k3"), ("k4",)]
    assert list(bodies([])) == []


async def test_sends_are_traced(cluster, client: Client) -> None:
    cluster.topics["RMQ_SYS_TRACE_TOPIC"] = 1
    message = Message("demo", b"hello", tag="UA", keys=("k1",))
    async with client.producer("demo", group="planes", trace=True) as producer:
        receipt = await producer.send(message)
        await producer.send(Message("demo", b"x"), delay_level=1)
        [batch] = await producer.send_batch([Message("demo", b"12"), Message("demo", b"3")])
    traced = [asked for asked in cluster.asked(SEND) if asked.send.topic != "demo"]
    lines = b"".join(bytes(asked.request.body) for asked in traced).decode().split("\x02")
    assert lines.pop() == ""
    first, second, third = (line.split("\x01") for line in lines)
    server = cluster.brokers["broker-a"].address
    assert first[:1] + first[2:10] + first[11:] == [
        *("Pub", "DefaultRegion", "planes", "demo", receipt.unique_id, "UA", "k1", server, "5"),
        *("0", receipt.id, "true"),
    ]
    assert second[11] == "3"  # a delayed message
    assert (third[5], third[9]) == (batch.unique_id, "3")
    keys = {text.decode(asked.send.properties.encode())["KEYS"] for asked in traced}
    assert {receipt.unique_id, "k1", *batch.unique_id.split(",")} <= set(" ".join(keys).split())
    assert all(asked.send.producer_group.startswith("_INNER_TRACE_PRODUCER-") for asked in traced)


async def test_transactions_are_traced(cluster, client: Client) -> None:
    cluster.topics["mine"] = 1
    async with (
        client.producer(
            "demo", trace="mine", check=lambda message: Verdict.UNKNOWN, group="banks"
        ) as producer,
        producer.transaction(Message("demo", b"x")) as transaction,
    ):
        record = layout.encode(
            "demo",
            b"x",
            text.encode({"UNIQ_KEY": "0A0B", "PGROUP": "banks", "TAGS": "t"}),
            queue_id=0,
            queue_offset=0,
            physical_offset=0,
            store_ms=0,
        )
        header = CheckTransactionHeader(5, 77, "0A0B", "0A0B")
        cluster.channel().notify(RequestCode.CHECK_TRANSACTION_STATE, header.fields(), record)
        await cluster.until(lambda: cluster.asked(RequestCode.END_TRANSACTION))
    bodies = [bytes(one.request.body) for one in cluster.asked(SEND) if one.send.topic == "mine"]
    pub, checked, end, _ = b"".join(bodies).decode().split("\x02")
    fields = checked.split("\x01")
    assert (fields[5], fields[6], fields[11], fields[12]) == ("0A0B", "t", "UNKNOW", "true")
    assert pub.split("\x01")[11] == "1"  # half
    fields = end.split("\x01")
    assert (fields[0], fields[5], fields[11], fields[12]) == (
        "EndTransaction",
        transaction.id,
        "COMMIT_MESSAGE",
        "false",
    )


async def test_a_broker_without_trace(cluster, client: Client) -> None:
    fields = {"msgId": "7F", "queueId": "0", "queueOffset": "5", "TRACE_ON": "false"}
    cluster.script(SEND, lambda asked: asked.answer(0, None, fields))
    async with client.producer("demo", trace=True) as producer:
        await producer.send(Message("demo", b"x"))
    assert len(cluster.asked(SEND)) == 1


async def test_trace_that_cannot_be_sent(cluster, client: Client, caplog) -> None:
    async with client.producer("demo", trace=True) as producer:  # nobody has the trace topic
        await producer.send(Message("demo", b"x"))
    assert "Trace records are lost" in caplog.text


async def test_too_many_records_are_dropped() -> None:
    class Sender:
        sent = 0

        async def start(self) -> None: ...
        async def close(self) -> None: ...

        async def send_oneway(self, message: Message) -> None:
            self.sent += message.body.count(b"\x02")

    sender = Sender()
    tracer = Tracer(sender)
    for number in range(1_100):
        tracer.add(record("Pub", number), ())
    await tracer.close()
    assert (sender.sent, tracer.dropped) == (1_024, 76)


async def test_observers_see_failures(cluster, kit, client: Client) -> None:
    seen: list[CohererError] = []

    class Watcher:
        properties = {"seen": "yes"}  # noqa: RUF012

        def begin(self, messages, group, kind):
            return self

        def stored(self, outcome) -> None:
            pytest.fail("it is not stored")

        def failed(self, error: CohererError) -> None:
            seen.append(error)

    cluster.script(SEND, kit.refuse(13), kit.hang_up)
    async with client.producer("demo", retries=0, observers=[Watcher()]) as producer:
        for _ in range(2):
            with pytest.raises(CohererError):
                await producer.send(Message("demo", b"x"))
    assert [type(error) for error in seen] == [type(seen[0]), DisconnectedError]
    assert isinstance(seen[0], RefusedError)
    assert text.decode(cluster.asked(SEND)[0].send.properties.encode())["seen"] == "yes"


# -- OpenTelemetry


@pytest.fixture
def spans():
    export = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    exporter = export.InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider, exporter
    provider.shutdown()


async def test_spans(cluster, kit, client: Client, spans) -> None:
    provider, exporter = spans
    telemetry = Telemetry(provider)
    cluster.script(SEND, cluster.default, kit.refuse(13, "illegal"))
    async with client.producer("demo", group="planes", observers=[telemetry]) as producer:
        receipt = await producer.send(Message("demo", b"hello", properties={"a": "b"}))
        with pytest.raises(RefusedError):
            await producer.send(Message("demo", b"x"))
        await producer.send_batch([Message("demo", b"1"), Message("demo", b"2")])
    stored = text.decode(cluster.asked(SEND)[0].send.properties.encode())
    carried = {name: stored[name] for name in ("a", "traceparent")}
    with telemetry.processing(ReceivedMessage("demo", b"hello", properties=carried), "g"):
        pass
    sent, refused, batch, processed = exporter.get_finished_spans()
    assert sent.name == "send demo"
    assert sent.attributes["messaging.message.id"] == receipt.unique_id
    assert sent.attributes["messaging.client.group"] == "planes"
    assert not refused.status.is_ok
    assert refused.events[0].name == "exception"
    assert batch.attributes["messaging.batch.message_count"] == 2
    assert processed.parent.span_id == sent.context.span_id
    assert processed.attributes["messaging.consumer.group.name"] == "g"


async def test_both_sides_name_a_message_by_the_same_id(coherer_rocketmq_url, spans) -> None:
    provider, exporter = spans
    telemetry = Telemetry(provider)
    async with connect_rocketmq(coherer_rocketmq_url) as client:
        async with client.producer("ids", observers=[telemetry]) as producer:
            await producer.send(Message("ids", b"hello"))
        async with client.consumer("ids", "ids", start="earliest") as consumer:
            async for message in consumer:
                with telemetry.processing(message, "ids"):
                    break
    ids = [span.attributes["messaging.message.id"] for span in exporter.get_finished_spans()]
    assert len(ids) == 2
    assert len(set(ids)) == 1


@pytest.mark.filterwarnings("ignore:.* has struck no request")  # a producer has no offsets
@pytest.mark.parametrize("kind", ["producer", "consumer"])
async def test_a_close_that_is_cancelled_closes_the_trace_too(
    coherer_simulated: SimulatedNode, kind: str
) -> None:
    coherer_simulated.create_topic("orders")
    coherer_simulated.create_topic("RMQ_SYS_TRACE_TOPIC")
    faults, requests = coherer_simulated.faults, coherer_simulated.requests
    async with connect_rocketmq(coherer_simulated.rocketmq_url) as client:
        producer = client.producer("orders", group="shop", trace=kind == "producer")
        consumer = client.consumer("shop", "orders", start="earliest", trace=kind == "consumer")
        async with producer, consumer:
            await producer.send(Message("orders", b"1"))
            assert await consumer.receive(60_000) is not None
            await asyncio.sleep(1)  # the records are sent
            with (
                faults.delay_answer("SEND_MESSAGE_V2", 2),
                faults.delay_answer("UPDATE_CONSUMER_OFFSET", 2),
                faults.delay_answer("UNREGISTER_CLIENT", 2),
            ):
                sent = producer.submit(Message("orders", b"2"))
                closing = asyncio.create_task(
                    (producer if kind == "producer" else consumer).close()
                )
                await asyncio.sleep(0.5)
                assert not closing.done()
                closing.cancel()
                await asyncio.wait([closing, sent])
            groups = [one.group for one in requests.of("UNREGISTER_CLIENT")]
            assert any(group.startswith("_INNER_TRACE_PRODUCER-") for group in groups)
