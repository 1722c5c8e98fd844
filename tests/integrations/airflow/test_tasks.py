"""Hook, operators and sensor, as tasks call them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowSensorTimeout

import coherer
from coherer import blocking
from coherer.errors import (
    CohererError,
    RefusedError,
    RequestTimeoutError,
    UnavailableError,
    UsageError,
)
from coherer.integrations.airflow.hooks import CohererHook, settings_of, shared_client
from coherer.integrations.airflow.operators import ConsumeOperator, ProduceOperator
from coherer.integrations.airflow.sensors import MessageSensor
from coherer.integrations.airflow.subscription import Reading, Subscription
from coherer.message import Message
from coherer.testing import embedded_node

CONNECTIONS = ["coherer_default", "tubemq_default"]
both = pytest.mark.parametrize("conn_id", CONNECTIONS)


class TaskInstance:
    """What a sensor asks of its task instance."""

    def __init__(self) -> None:
        self.pushed: dict[str, Any] = {}

    def xcom_push(self, key: str, value: object) -> None:
        self.pushed[key] = value


def run(task: Any) -> Any:
    return task.execute({"ti": TaskInstance()})


def send(topic: str, *messages: object, **options: Any) -> None:
    run(ProduceOperator(task_id="send", topic=topic, messages=messages, **options))


def received(topic: str, **options: Any) -> list[bytes]:
    found: list[bytes] = []
    options = {"group": f"look-at-{topic}"} | options
    run(
        ConsumeOperator(
            task_id="receive",
            topic=topic,
            handler=lambda messages: found.extend(one.body for one in messages),
            **options,
        )
    )
    return sorted(found)


@both
def test_a_connection_is_tested(conn_id: str) -> None:
    works, text = CohererHook(conn_id).test_connection()
    assert works, text
    assert "Brokers: " in text


def test_a_connection_that_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_NOBODY", "rocketmq://127.0.0.1:9/?connect_timeout_ms=100")
    works, text = CohererHook("nobody").test_connection()
    assert not works
    assert "127.0.0.1:9" in text


def test_connections_name_clusters() -> None:
    secure = Connection(
        conn_id="a",
        conn_type="rocketmq",
        host="ns1:9876,ns2:9876",
        login="me",
        password="secret",
        extra=json.dumps({"tls": {"verify": False}, "namespace": "team", "timeout_ms": 5000}),
    )
    url, options = settings_of(secure)
    assert url == "rocketmq://ns1:9876,ns2:9876"
    assert options.pop("tls") == coherer.TlsOptions(verify=False)
    assert options == {
        "user": "me", "password": "secret", "namespace": "team", "timeout_ms": 5000,
    }  # fmt: skip
    plain = Connection(conn_id="b", uri="tubemq://m:8715/?tls=true&timeout_ms=5000")
    assert settings_of(plain) == (
        "tubemq://m:8715",
        {"tls": coherer.TlsOptions(), "timeout_ms": 5000},
    )
    given = settings_of(Connection(conn_id="c", uri="rocketmq://m/?vip=true"))
    assert given == ("rocketmq://m", {"vip": True})
    assert settings_of(Connection(conn_id="c", uri="rocketmqs://m"))[0] == "rocketmqs://m"


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("kafka://a", "type 'kafka'"),
        ("rocketmq://", "no host"),
        ("rocketmq://a/?timeout_ms=soon", "timeout_ms"),
        ("rocketmq://a/?tls=perhaps", "tls"),
        ("rocketmq://a/?vip=perhaps", "vip"),
    ],
)
def test_wrong_connections_are_named(uri: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        settings_of(Connection(conn_id="wrong", uri=uri))


async def test_triggers_of_a_loop_share_a_client() -> None:
    async with shared_client("coherer_default", "a") as one:
        async with (
            shared_client("coherer_default", "b") as two,
            shared_client("tubemq_default", "a") as three,
            shared_client("coherer_default", "a") as member,
        ):
            assert one is two
            assert three is not one
            assert member not in (one, three)
            async with shared_client("coherer_default", "c") as other:
                assert other is one
        await one.admin().brokers.list()
    with pytest.raises(UsageError):
        await one.admin().brokers.list()
    async with shared_client("coherer_default", "a") as later:
        assert later is not one


async def test_an_asyncio_client_belongs_to_its_caller() -> None:
    async with await CohererHook().aget_conn() as client:
        assert await client.admin().brokers.list()


@both
def test_what_is_produced_is_consumed(conn_id: str, topic: str) -> None:
    messages = ["röt", b"\xff", {"a": 1}, [1], Message(topic, b"own", tag="other")]
    task = ProduceOperator(
        task_id="send", topic=topic, messages=messages, tag="new", conn_id=conn_id,
        properties={"colour": "red"},
    )  # fmt: skip
    assert run(task) == 5
    seen: list[coherer.AnyMessage] = []
    task2 = ConsumeOperator(
        task_id="receive", topic=topic, group="g", tags="new || none", handler=seen.extend,
        conn_id=conn_id,
    )  # fmt: skip
    assert run(task2) == 4
    assert sorted(one.body for one in seen) == sorted(["röt".encode(), b"\xff", b'{"a":1}', b"[1]"])
    assert {one.properties["colour"] for one in seen} == {"red"}
    assert run(task2) == 0


def test_conditions_and_keys(url: str, topic: str) -> None:
    send(topic, "late", properties={"delay": "20"}, keys=["k1"])
    send(topic, "early", properties={"delay": "1"})
    assert received(topic, sql92="delay > 15") == [b"late"]
    with blocking.rocketmq.connect(url) as client:
        assert [one.body for one in client.admin().messages.find(topic, "k1")] == [b"late"]
    with pytest.raises(UsageError, match="SQL92"):
        received(topic, sql92="delay > 15", conn_id="tubemq_default")
    with pytest.raises(UsageError, match="keys is a list of words"):
        send(topic, "letters", keys="k1")
    with pytest.raises(UsageError, match="either"):
        received(topic, sql92="delay > 15", tags="a")


def test_a_delivery_time(topic: str) -> None:
    at = datetime.now(UTC) + timedelta(milliseconds=300)
    send(topic, "later", deliver_at=at.isoformat())
    send(topic, "also later", delay=timedelta(milliseconds=300))
    found: list[bytes] = []
    while len(found) < 2:
        found += received(topic, wait_for_messages=True)
    assert sorted(found) == [b"also later", b"later"]
    with pytest.raises(UsageError, match="TubeMQ"):
        send(topic, "later", delay=timedelta(1), conn_id="tubemq_default")


def test_a_failed_send_says_what_is_stored(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CohererError, match="1 messages may not be stored, 1 are"):
        send(topic, "good", b"x" * 5_000_000)
    assert received(topic) == [b"good"]
    with pytest.raises(UsageError, match="list"):
        run(ProduceOperator(task_id="send", topic=topic, messages="one"))
    monkeypatch.setenv("AIRFLOW_CONN_NOBODY", "rocketmq://127.0.0.1:9/?timeout_ms=200")
    with pytest.raises(CohererError, match=r"127\.0\.0\.1:9"):
        send(topic, "lost", conn_id="nobody")


@both
def test_what_a_function_failed_on_comes_again(conn_id: str, topic: str) -> None:
    send(topic, *map(str, range(5)))

    def fail(messages: list[coherer.AnyMessage]) -> None:
        raise RuntimeError(f"{len(messages)} messages")

    task = ConsumeOperator(task_id="receive", topic=topic, group="g", handler=fail, conn_id=conn_id)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="messages"):
            run(task)
    assert received(topic, group="g", conn_id=conn_id) == [b"0", b"1", b"2", b"3", b"4"]


@both
def test_a_missing_topic_and_a_missing_broker_are_named(
    conn_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RefusedError, match="nosuch"):
        received("nosuch", conn_id=conn_id)
    with embedded_node() as other:
        url = other.url if conn_id == "tubemq_default" else other.rocketmq_url
        monkeypatch.setenv("AIRFLOW_CONN_STOPPED", url)
        other.create_topic("t")
        assert received("t", conn_id="stopped") == []
        send("t", "one", conn_id="stopped")
        other.restart()
        assert received("t", conn_id="stopped") == [b"one"]
        with other.down(), pytest.raises(UnavailableError):
            received("t", conn_id="stopped")


@both
def test_a_topic_that_cannot_be_read_to_its_end(conn_id: str) -> None:
    """A task that succeeded would say that there is nothing more to read."""
    with embedded_node() as other:
        other.create_topic("t")
        url = other.url if conn_id == "tubemq_default" else other.rocketmq_url
        with blocking.connect(url) as client:
            with client.producer("t") as producer:
                producer.send_many(Message("t", bytes(1_000_000)) for _ in range(20)).check()
            reading = Subscription(conn_id=conn_id, topic="t", group="g")
            with Reading(client, reading, silence_ms=300) as left:
                found = left.next(None)
                assert found is not None
                other.kill()
                with pytest.raises(RequestTimeoutError, match="has not read the topic to its end"):
                    list(iter(lambda: left.next(None), None))


@both
def test_messages_that_come_while_it_reads_are_left_to_the_next_task(
    conn_id: str, topic: str
) -> None:
    """Otherwise a task would never end on a topic that somebody always sends to."""
    send(topic, "first", conn_id=conn_id)
    runs: list[list[bytes]] = []

    def handle(messages: list[coherer.AnyMessage]) -> None:
        assert len(runs) < 1_000, "it never ends"
        runs.append([one.body for one in messages])
        send(topic, f"sent in run {len(runs)}", conn_id=conn_id)

    options: dict[str, Any] = {"group": "busy", "conn_id": conn_id}
    run(ConsumeOperator(task_id="read", topic=topic, handler=handle, **options))
    sent = [b"first", *(b"sent in run %d" % number for number in range(1, len(runs) + 1))]
    read = [body for bodies in runs for body in bodies]
    assert sorted(read + received(topic, **options)) == sorted(sent)


def test_no_more_messages_than_asked_for(topic: str) -> None:
    send(topic, *map(str, range(100)))
    first = received(topic, max_messages=40)
    assert len(first) == 40
    assert len(received(topic, max_messages=2)) == 2
    rest = received(topic)
    assert len(rest) == 58
    assert not set(first) & set(rest)


def test_much_is_read_to_its_end(topic: str) -> None:
    send(topic, *map(str, range(3_000)))
    assert len(received(topic)) == 3_000


@both
def test_a_sensor_takes_one_message(conn_id: str, topic: str) -> None:
    task = MessageSensor(
        task_id="wait", topic=topic, group="g", conn_id=conn_id, timeout=0, poke_interval=0
    )
    with pytest.raises(AirflowSensorTimeout):
        run(task)
    send(topic, b"\xff", tag="new")
    instance = TaskInstance()
    [found] = task.execute({"ti": instance})  # type: ignore[misc]
    assert (found["topic"], found["tag"], found["body"]) == (topic, "new", None)
    assert found["body_base64"] == "/w=="
    assert instance.pushed["return_value"] == [found]
    assert msgspec.json.decode(msgspec.json.encode(found)) == found
    with pytest.raises(AirflowSensorTimeout):
        run(task)


def test_a_sensor_leaves_the_rest(topic: str) -> None:
    send(topic, "one", "two", "three")
    task = MessageSensor(task_id="wait", topic=topic, group="g")
    bodies = [run(task)[0]["body"] for _ in range(3)]
    assert sorted(bodies) == ["one", "three", "two"]
