"""`coherer consume`: printing and acknowledging, and the command against a node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import pytest
from typer.testing import CliRunner, Result

import coherer
import coherer.blocking
from coherer._wire.tubemq.delivery import MessageBatch
from coherer.cli.consume import Form, Printer
from coherer.cli.main import app
from coherer.message import ReceivedMessage
from coherer.testing import EmbeddedNode


@dataclass
class Batch:
    """A batch that can be printed."""

    messages: list[ReceivedMessage]

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return iter(self.messages)

    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


@dataclass
class Consumer:
    """A source that records calls."""

    batches: list[Batch]
    log: list[str] = field(default_factory=list)

    def receive(self, *, timeout_ms: int) -> MessageBatch | None:
        return cast("MessageBatch", self.batches.pop(0)) if self.batches else None

    def ack(self, batch: MessageBatch) -> None:
        self.log.append(f"ack {len(batch)}")

    def stop_after(self, batch: MessageBatch, printed: int) -> None:
        self.log.append(f"stop after {printed} of {len(batch)}")

    def error(self) -> None:
        return None


def batch_of(*bodies: bytes, first: int = 0) -> Batch:
    return Batch(
        [
            ReceivedMessage("t", body, tag="a", broker="1", partition=2, offset=first + number)
            for number, body in enumerate(bodies)
        ]
    )


@pytest.fixture
def consumer() -> Consumer:
    return Consumer([batch_of(b"a", b"b"), batch_of(b"c", b"\xff", b"e", first=2)])


def printed(form: Form, consumer: Consumer, maximum: int | None = None) -> tuple[bytes, object]:
    out: list[bytes] = []
    printer = Printer(form, out.append, maximum)
    rest = printer.run(consumer, timeout_s=0)
    return b"".join(out), rest and (rest.body, rest.offset)


def test_text(consumer: Consumer) -> None:
    assert printed(Form.text, consumer) == (b"a\nb\nc\n\xff\ne\n", None)
    assert consumer.log == ["ack 2", "ack 3"]


def test_hex(consumer: Consumer) -> None:
    assert printed(Form.hex, consumer)[0] == b"61\n62\n63\nff\n65\n"


def test_json(consumer: Consumer) -> None:
    out, _ = printed(Form.json, consumer)
    first, _, _, binary, _ = map(json.loads, out.splitlines())
    origin = {"tag": "a", "topic": "t", "broker": "1", "partition": 2}
    assert first == {"body": "a", **origin, "offset": 0}
    assert binary == {"base64": "/w==", **origin, "offset": 3}


@pytest.mark.parametrize(
    ("maximum", "out", "rest", "log"),
    [
        (1, b"a\n", (b"a", 0), ["stop after 1 of 2"]),
        (2, b"a\nb\n", None, ["ack 2"]),
        (3, b"a\nb\nc\n", (b"c", 2), ["ack 2", "stop after 1 of 3"]),
        (5, b"a\nb\nc\n\xff\ne\n", None, ["ack 2", "ack 3"]),
    ],
)
def test_the_maximum_is_never_exceeded(
    consumer: Consumer, maximum: int, out: bytes, rest: object, log: list[str]
) -> None:
    assert printed(Form.text, consumer, maximum) == (out, rest)
    assert consumer.log == log


def test_messages_that_cannot_be_printed_are_not_acknowledged(consumer: Consumer) -> None:
    def write(data: bytes) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        Printer(Form.text, write).run(consumer, timeout_s=0)
    assert consumer.log == []


@pytest.fixture
def filled(coherer_node: EmbeddedNode, coherer_topic: str) -> str:
    """A topic of one partition with ten messages."""
    with (
        coherer.blocking.connect(coherer_node.url) as client,
        client.producer(coherer_topic) as producer,
    ):
        report = producer.send_many(
            coherer.Message(coherer_topic, b"m%d" % number, tag="odd" if number % 2 else "even")
            for number in range(10)
        )
        report.check()
    return coherer_topic


def consume(node: EmbeddedNode, *words: str) -> Result:
    cluster = ("--url", node.url, "--admin", node.admin_url)
    return CliRunner().invoke(app, ["consume", *words, *cluster], catch_exceptions=False)


def test_a_topic_is_read_from_the_beginning(coherer_node: EmbeddedNode, filled: str) -> None:
    done = consume(coherer_node, filled, "--timeout", "1")
    assert done.exit_code == 0
    assert done.stdout == "".join(f"m{number}\n" for number in range(10))
    assert done.stderr == "10 messages\n"


def test_a_group_continues_where_it_stopped(coherer_node: EmbeddedNode, filled: str) -> None:
    words = (filled, "--group", f"g_{filled}", "--max", "4", "--json")
    for first in (0, 4):
        done = consume(coherer_node, *words)
        assert done.exit_code == 0
        found = [json.loads(line)["body"] for line in done.stdout.splitlines()]
        assert found == [f"m{number}" for number in range(first, first + 4)]


def test_filters(coherer_node: EmbeddedNode, filled: str) -> None:
    done = consume(coherer_node, filled, "--filter", "odd", "--max", "5", "--format", "hex")
    found = [bytes.fromhex(line) for line in done.stdout.splitlines()]
    assert found == [b"m1", b"m3", b"m5", b"m7", b"m9"]


def test_latest_skips_old_messages(coherer_node: EmbeddedNode, filled: str) -> None:
    done = consume(coherer_node, filled, "--from", "latest", "--timeout", "0.5")
    assert (done.exit_code, done.stdout) == (0, "")
