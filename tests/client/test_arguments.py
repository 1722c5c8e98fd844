"""Each public method gets wrong arguments, and raises errors of Coherer's own."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Any

import pytest

import coherer
import coherer.blocking
from coherer import rocketmq, tubemq
from coherer._client.engine.arguments import UNCHECKED
from coherer.blocking import rocketmq as blocking_rocketmq
from coherer.blocking import tubemq as blocking_tubemq
from coherer.errors import CohererError, UsageError
from coherer.message import Message
from coherer.testing import EmbeddedNode, async_embedded_node, embedded_node

WRONG: tuple[Any, ...] = (None, 5, -1.5, "text", b"bytes", ["list"], {"a": 1}, object())
ENDLESS = {"run", "receive", "poll", "batches", "wait_assigned", "close", "start", "request"}
"""Methods that wait as long as they are told to, or end the object that is tested."""
DEEDS = {"delete_topic", "delete_group", "clean"}


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with embedded_node() as node:
        yield node


def methods(thing: object) -> Iterator[str]:
    for name in dir(type(thing)):
        member = inspect.getattr_static(type(thing), name)
        if not name.startswith("_") and inspect.isfunction(member) and name not in ENDLESS:
            yield name


def wrong_calls(method: Any) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The method's arguments, each of which is wrong in turn."""
    parameters = list(inspect.signature(method).parameters.values())
    positional = [one for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    needed = [one for one in positional if one.default is one.empty]
    named = [one for one in parameters if one.kind is one.KEYWORD_ONLY]
    rest = {one.name: "text" for one in named if one.default is one.empty}
    for value in WRONG:
        if positional:
            yield (value,) * max(len(needed), 1), rest
        for one in named:
            yield ("text",) * len(needed), {**rest, one.name: value}
    yield ("text",) * len(needed), {**rest, "auto_offset_reset": 1}


async def try_all(thing: object) -> list[str]:
    """The calls that ended in a raw Python error."""
    raw: list[str] = []
    for name in methods(thing):
        method = getattr(thing, name)
        for args, kwargs in wrong_calls(method):
            if name in DEEDS and args == ("text",):
                continue
            try:
                async with asyncio.timeout(5):
                    answer = method(*args, **kwargs)
                    if inspect.isawaitable(answer):
                        await answer
            except CohererError:
                continue
            except Exception as error:  # noqa: BLE001 - this is what is searched for
                if name in UNCHECKED and isinstance(error, TypeError) and "argument" in str(error):
                    continue  # Python's own text names the argument
                raw.append(f"{type(thing).__name__}.{name}{args}{kwargs}: {error!r}")
    return raw


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_no_wrong_argument_ends_in_a_raw_error(tmp_path, protocol: str) -> None:
    async with async_embedded_node(tmp_path) as node:
        url = node.url if protocol == "tubemq" else node.rocketmq_url
        options: dict[str, Any] = {"timeout_ms": 300}
        if protocol == "tubemq":
            options["admin"] = f"http://127.0.0.1:{node.admin_port}"
        async with (
            coherer.connect(url, **options) as client,
            client.producer("demo") as producer,
            client.consumer("readers", "demo") as consumer,
        ):
            receipt = await producer.send(Message("demo", b"x"))
            assert receipt.topic == "demo"
            [first, *_] = await client.partitions("demo")
            reader: Any = client.reader(first, 0)  # type: ignore[attr-defined] # both have one
            things = [client, client.admin(), producer, consumer, reader]
            if protocol == "rocketmq":
                things.append(client.pull_consumer("pullers", "demo"))  # type: ignore[attr-defined]
            raw: list[str] = []
            async with AsyncExitStack() as stack:
                for thing in things[4:]:
                    await stack.enter_async_context(thing)
                for thing in things:
                    raw += await try_all(thing)
            assert not raw, "\n".join(raw)


OPTIONS: Mapping[str, Any] = {
    "tubemq.ClientOptions": tubemq.ClientOptions,
    "tubemq.ConsumerOptions": tubemq.ConsumerOptions,
    "rocketmq.ClientOptions": rocketmq.ClientOptions,
    "rocketmq.ProducerOptions": rocketmq.ProducerOptions,
    "rocketmq.ConsumerOptions": rocketmq.ConsumerOptions,
}


@pytest.mark.parametrize("kind", OPTIONS)
async def test_no_wrong_option_ends_in_a_raw_error(kind: str) -> None:
    protocol, _, name = kind.partition(".")
    client = coherer.connect(f"{protocol}://127.0.0.1:9")
    make: Any = {
        "ClientOptions": lambda **given: coherer.connect(f"{protocol}://127.0.0.1:9", **given),
        "ProducerOptions": lambda **given: client.producer("a", **given),
        "ConsumerOptions": lambda **given: client.consumer("g", "a", **given),
    }[name]
    for option in OPTIONS[kind].__struct_fields__:
        for value in WRONG:
            with suppress(CohererError):
                make(**{option: value})
    for kafkas in ("auto_offset_reset", "bootstrap_servers"):
        with pytest.raises(UsageError, match=kafkas):
            make(**{kafkas: "earliest"})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c, p: c.consumer(None, "demo"), "`group` is text, not None"),
        (lambda c, p: c.consumer("g", 5), "`topics` is text or a list or a mapping, not 5"),
        (
            lambda c, p: c.consumer("g", "t", auto_offset_reset="earliest"),
            "Kafka's auto_offset_reset is called start here",
        ),
        (lambda c, p: p.send("demo", b"x"), 'Write Message("topic", b"body")'),
        (lambda c, p: p.submit("demo", b"x"), 'Write Message("topic", b"body")'),
        (lambda c, p: p.send(Message("demo", b"x"), when=5), "Unknown argument of `send` 'when'"),
        (lambda c, p: p.publish(["demo"]), "`topics` is text, not"),
    ],
)
@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_errors_say_what_to_write(node: EmbeddedNode, protocol: str, call: Any, words: str) -> None:
    url = node.url if protocol == "tubemq" else node.rocketmq_url
    with coherer.blocking.connect(url) as client, client.producer("demo") as producer:
        with pytest.raises(UsageError) as caught:
            call(client, producer)
        assert words in str(caught.value)


def _wait(outcome: Any) -> None:
    outcome.result(10)


def test_what_only_one_protocol_has(node: EmbeddedNode) -> None:
    with pytest.raises(UsageError, match="TlsOptions"):
        blocking_tubemq.connect(node.url, tls=True)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="whole number"):
        embedded_node(default_partitions="many").__enter__()
    wrong: Any = 5
    with blocking_rocketmq.connect(node.rocketmq_url) as client, client.producer("d") as producer:
        for call in (producer.send, producer.submit):
            with pytest.raises(UsageError, match="delay"):
                _wait(call(Message("d", b"x"), delay=wrong))
        assert producer.send(Message("d", b"x"), delay=timedelta(seconds=1)).topic == "d"


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_a_client_in_a_second_event_loop_says_so(node: EmbeddedNode, protocol: str) -> None:
    url = node.url if protocol == "tubemq" else node.rocketmq_url
    client = coherer.connect(url)
    producer = client.producer("demo")

    async def first() -> None:
        await producer.start()
        await producer.send(Message("demo", b"x"))

    async def second() -> None:
        for work in (
            lambda: client.partitions("demo"),
            lambda: client.consumer("g", "demo").start(),
            lambda: client.producer("demo").start(),
            lambda: producer.send(Message("demo", b"x")),
            producer.flush,
            client.close,
        ):
            with pytest.raises(UsageError, match="another event loop") as caught:
                await work()
            assert "asyncio.run" in caught.value.hint

    with asyncio.Runner() as runner:
        runner.run(first())
        other = threading.Thread(target=lambda: asyncio.run(second()))
        other.start()
        other.join()
        runner.run(client.close())


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_a_submit_from_another_thread_says_so(node: EmbeddedNode, protocol: str) -> None:
    url = node.url if protocol == "tubemq" else node.rocketmq_url
    async with coherer.connect(url) as client, client.producer("demo") as producer:
        with pytest.raises(UsageError, match="thread without one") as caught:
            await asyncio.to_thread(producer.submit, Message("demo", b"x"))
        assert "call_soon_threadsafe" in caught.value.hint
