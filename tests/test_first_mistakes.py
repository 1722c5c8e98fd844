"""What people do wrong on their first day gets an error that says what to do instead."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

import coherer
import coherer.blocking
from coherer._client.engine.sender import SendReport
from coherer._net import TlsOptions
from coherer.errors import (
    ConnectError,
    RefusedError,
    RequestTimeoutError,
    SendManyError,
    UsageError,
    WrongProtocolError,
)
from coherer.message import Message
from coherer.testing import EmbeddedNode, async_embedded_node, embedded_node


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with embedded_node() as node:
        yield node


def url_of(node: EmbeddedNode, protocol: str) -> str:
    return node.url if protocol == "tubemq" else node.rocketmq_url


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - other threads make it true
        await asyncio.sleep(0.01)


BOTH = pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])


@BOTH
def test_trio_users_learn_that_clients_run_on_asyncio(node: EmbeddedNode, protocol: str) -> None:
    async def enter() -> None:
        async with coherer.connect(url_of(node, protocol)):
            pass

    async def start() -> None:
        await coherer.connect(url_of(node, protocol)).producer("orders").start()

    async def ask() -> None:
        await coherer.connect(url_of(node, protocol)).partitions("orders")

    for work in (enter, start, ask):
        with pytest.raises(UsageError, match="run on asyncio") as caught:
            trio.run(work)
        assert "coherer.blocking" in caught.value.hint


@BOTH
def test_anyio_works_on_its_asyncio_backend(node: EmbeddedNode, protocol: str) -> None:
    async def send() -> object:
        async with (
            coherer.connect(url_of(node, protocol)) as client,
            client.producer("orders") as producer,
        ):
            return (await producer.send(Message("orders", b"x"))).topic

    assert anyio.run(send, backend="asyncio") == "orders"


@BOTH
async def test_what_is_not_a_message_is_refused(node: EmbeddedNode, protocol: str) -> None:
    wrong: Any = "hello"
    async with (
        coherer.connect(url_of(node, protocol)) as client,
        client.producer("orders") as producer,
    ):
        with pytest.raises(UsageError, match="sends a Message, not str"):
            await producer.send(wrong)
        with pytest.raises(UsageError, match="sends a Message, not str"):
            producer.submit(wrong)
        with pytest.raises(UsageError, match="sends a Message, not str"):
            await producer.send_many([wrong])


@BOTH
def test_so_it_is_by_the_blocking_producer(node: EmbeddedNode, protocol: str) -> None:
    wrong: Any = "hello"
    with (
        coherer.blocking.connect(url_of(node, protocol)) as client,
        client.producer("orders") as producer,
    ):
        for call in (producer.send, producer.submit, lambda one: producer.send_many([one])):
            with pytest.raises(UsageError, match="sends a Message, not str"):
                call(wrong)


@BOTH
def test_a_producer_that_was_not_started_names_both_kinds_of_blocks(
    node: EmbeddedNode, protocol: str
) -> None:
    with coherer.blocking.connect(url_of(node, protocol)) as client:
        producer = client.producer("orders")
        with pytest.raises(UsageError, match="not started") as caught:
            producer.send(Message("orders", b"x"))
        assert "`with` block" in caught.value.hint


async def test_the_directory_of_an_embedded_node_may_be_text(tmp_path: Path) -> None:
    with embedded_node(str(tmp_path / "a")) as node:
        assert node.directory == tmp_path / "a"
    async with async_embedded_node(str(tmp_path / "b")) as other:
        assert other.options.directory == tmp_path / "b"


class Silent(http.server.BaseHTTPRequestHandler):
    """A web server that does not write to the terminal."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Log nothing."""


@pytest.fixture
def web_port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@BOTH
async def test_our_administration_port_is_named_at_once(node: EmbeddedNode, protocol: str) -> None:
    port = node.admin_url.rpartition(":")[2]
    with pytest.raises(WrongProtocolError, match="looks like an HTTP") as caught:
        async with coherer.connect(f"{protocol}://127.0.0.1:{port}") as client:
            await client.partitions("orders")
    assert caught.value.server == f"127.0.0.1:{port}"
    assert "8715" in caught.value.hint


async def test_a_web_server_that_answers_is_named(web_port: int) -> None:
    with pytest.raises(WrongProtocolError, match="looks like an HTML page"):
        async with coherer.connect(f"tubemq://127.0.0.1:{web_port}") as client:
            await client.partitions("orders")


async def test_a_web_server_that_waits_for_more_is_suspected(web_port: int) -> None:
    with pytest.raises(coherer.CohererError, match="does the port speak this protocol"):
        async with coherer.connect(f"rocketmq://127.0.0.1:{web_port}", timeout_ms=200) as client:
            await client.partitions("orders")


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("", "The name of a topic is empty"),
        ("a b", "' ' is not allowed"),
        ("größe", "'ß', 'ö' are not allowed"),
        ("x" * 65, "65 characters; 64 are allowed"),
    ],
)
async def test_a_name_that_no_topic_can_have_is_refused_at_once(
    node: EmbeddedNode, topic: str, expected: str
) -> None:
    async with coherer.connect(node.url) as client:
        async with client.producer() as producer:
            with pytest.raises(UsageError, match=expected):
                await producer.send(Message(topic, b"x"))
        with pytest.raises(UsageError, match=expected):
            client.consumer("readers", topic)
        with pytest.raises(UsageError, match=expected):
            await client.partitions(topic)
        with pytest.raises(UsageError, match=expected):
            await client.admin().topics.create(topic, 1)


async def test_a_name_that_tubemq_does_not_create_is_not_tried_for_long(
    node: EmbeddedNode,
) -> None:
    # If they were tried until the timeout, this test would take ten minutes.
    async with (
        coherer.connect(node.url, timeout_ms=600_000) as client,
        client.producer() as producer,
    ):
        with pytest.raises(RefusedError, match="begin with an ASCII letter"):
            await producer.send(Message("2026-orders", b"x"))
        with pytest.raises(RefusedError, match="not deployed"):
            await client.consumer("readers", "2026-orders").start()


def test_tls_says_which_file_is_wrong(tmp_path: Path) -> None:
    missing, text = tmp_path / "missing.pem", tmp_path / "text.pem"
    text.write_text("no certificate")
    for name in ("trust", "certificate"):
        for file in (missing, text):
            with pytest.raises(UsageError, match=f"`{name}`: the file .*{file.name}"):
                TlsOptions(**{name: file}).client_context()


def failed(count: int) -> list[tuple[Message, coherer.CohererError]]:
    error = coherer.CohererError("The disk is full.")
    return [(Message("orders", b"x"), error)] * count


async def fail_after_sending(client: Any, message: Message) -> None:
    async with client.producer("orders") as producer:
        await producer.send_many([message])
        raise ZeroDivisionError


@BOTH
async def test_failures_of_send_many_that_nobody_looked_at_are_raised(
    node: EmbeddedNode, protocol: str
) -> None:
    too_long = Message("orders", b"x" * 5_000_000)
    async with coherer.connect(url_of(node, protocol)) as client:
        with pytest.raises(SendManyError, match="2 messages given to send_many"):
            async with client.producer("orders") as producer:
                await producer.send_many([too_long, Message("orders", b"x"), too_long])
        async with client.producer("orders") as producer:
            report = await producer.send_many([too_long])
            assert [message for message, _ in report.failed] == [too_long]
        async with client.producer("orders") as producer:
            report = await producer.send_many([too_long])
            with pytest.raises(UsageError):
                report.check()
        with pytest.raises(ZeroDivisionError):  # the error of the block itself counts
            await fail_after_sending(client, too_long)


@BOTH
def test_so_they_are_by_the_blocking_producer(node: EmbeddedNode, protocol: str) -> None:
    too_long = Message("orders", b"x" * 5_000_000)
    with coherer.blocking.connect(url_of(node, protocol)) as client:
        with (
            pytest.raises(SendManyError, match="1 message given to send_many"),
            client.producer("orders") as producer,
        ):
            producer.send_many([too_long])
        with client.producer("orders") as producer:
            assert len(producer.send_many([too_long]).failed) == 1


def test_showing_a_report_is_not_looking_at_its_failures() -> None:
    from coherer._client.engine.sender import UnseenFailures

    unseen = UnseenFailures()
    report = SendReport(1, failed(3), unseen=unseen)
    assert "3 failed" in repr(report)
    other = SendReport(1, failed(2), unseen=unseen)
    assert len(other.failed) == 2
    with pytest.raises(SendManyError, match="3 messages"):
        unseen.check()
    unseen.check()  # said once


@BOTH
@pytest.mark.parametrize("kind", ["coroutine", "function"])
async def test_the_value_that_a_handler_returns_is_ignored_and_said_once(
    node: EmbeddedNode, protocol: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = group = answer = f"returns-{protocol}-{kind}"
    seen: list[bytes] = []

    def function(batch: Any) -> Any:
        seen.extend(batch.bodies())
        return answer

    async def coroutine(batch: Any) -> Any:
        return function(batch)

    handler: Any = coroutine if kind == "coroutine" else function
    async with coherer.connect(url_of(node, protocol)) as client:
        async with client.producer(topic) as producer:
            await producer.send(Message(topic, b"a"))
            async with client.consumer(group, topic, start="earliest") as consumer:
                running = asyncio.create_task(consumer.run(handler))
                await until(lambda: len(seen) == 1)
                await producer.send(Message(topic, b"b"))
                await until(lambda: len(seen) == 2)
                await consumer.close()
                await running
        async with client.consumer(group, topic, start="earliest") as consumer:
            await consumer.wait_assigned(10_000)
            assert await consumer.receive(300) is None, "both were acknowledged"
    said = [one for one in caplog.records if f"returned {answer!r}" in one.getMessage()]
    assert len(said) == 1


async def test_a_consumer_whose_topic_is_created_for_it_is_warned(
    node: EmbeddedNode, caplog: pytest.LogCaptureFixture
) -> None:
    async with coherer.connect(node.url) as client:
        for _ in range(2):
            async with client.consumer("readers", "misspelt-topic"):
                pass
    [line] = [one.getMessage() for one in caplog.records if "misspelt-topic" in one.getMessage()]
    assert "did not exist" in line


async def test_a_member_that_waits_for_a_queue_of_nothing_says_its_group(
    node: EmbeddedNode,
) -> None:
    async with (
        coherer.connect(node.rocketmq_url) as client,
        client.consumer("waiting", "nothing-there") as consumer,
    ):
        with pytest.raises(RequestTimeoutError, match="member of group waiting has no queue"):
            await consumer.wait_assigned(100)


async def test_tls_against_a_plain_port_is_given_up_long_before_the_timeout(
    node: EmbeddedNode,
) -> None:
    url = node.url.replace("tubemq://", "tubemqs://")
    for make in (lambda c: c.producer("orders"), lambda c: c.consumer("g", "orders")):
        async with coherer.connect(url, timeout_ms=600_000) as client:
            with pytest.raises(ConnectError, match="TLS handshake failed"):
                await make(client).start()


async def test_a_failed_handler_is_logged_with_its_message(
    node: EmbeddedNode, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = "failing", "failing-readers"

    async def fail(batch: Any) -> None:
        raise ValueError(batch.topic)

    async with coherer.connect(node.rocketmq_url) as client:
        async with client.producer(topic) as producer:
            await producer.send(Message(topic, b"a", keys=("order-7",)))
        async with client.consumer(group, topic, start="earliest", max_attempts=1) as consumer:
            running = asyncio.create_task(consumer.run(fail))
            await until(lambda: "The handler failed" in caplog.text)
            await consumer.close()
            await running
    [line] = [one.getMessage() for one in caplog.records if "handler failed" in one.getMessage()]
    for part in (topic, "key order-7", "attempt 1", group, "moves to the dead-letter queue"):
        assert part in line
    assert "delivered again" not in line


@pytest.mark.parametrize(
    ("protocol", "options", "then"),
    [
        ("tubemq", {}, "will be delivered again"),
        ("rocketmq", {}, "will be delivered again, until the group's limit of redeliveries"),
        ("rocketmq", {"max_attempts": 3}, "will be delivered again"),
        ("rocketmq", {"orderly": True}, "will be delivered again"),
        ("rocketmq", {"model": "broadcast"}, "is not delivered again, as in each broadcast group"),
    ],
    ids=["tubemq", "default", "limited", "orderly", "broadcast"],
)
async def test_the_log_says_what_happens_to_a_failed_message(
    node: EmbeddedNode,
    protocol: str,
    options: Any,
    then: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = group = f"failed-{request.node.callspec.id}"
    if options.get("model") == "broadcast":  # its offsets are in the home directory otherwise
        options = {**options, "offsets": tmp_path}

    async def fail(batch: Any) -> None:
        raise ValueError(batch.topic)

    async with coherer.connect(url_of(node, protocol)) as client:
        async with client.producer(topic) as producer:
            await producer.send(Message(topic, b"a"))
        async with client.consumer(group, topic, start="earliest", **options) as consumer:
            running = asyncio.create_task(consumer.run(fail))
            await until(lambda: "The handler failed" in caplog.text)
            await consumer.close()
            await running
    line = next(one.getMessage() for one in caplog.records if "handler failed" in one.getMessage())
    assert line.endswith(f"in group {group} {then}")
