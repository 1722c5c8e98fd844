"""Half messages: made, ended, marked, asked about."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest

from coherer import limits
from coherer._record import layout
from coherer._record.properties import decode, encode
from coherer._record.system_topics import TIMER_TOPIC
from coherer._rules.rocketmq.timers import waiting
from coherer._rules.rocketmq.transactions import (
    End,
    Op,
    committed,
    done_mark,
    given_up,
    half,
    is_transactional,
    mismatch,
    put_back,
    question,
    read_op,
    resumed,
)
from coherer._store import Draft
from coherer.errors import UsageError

PROPERTIES = {
    "TRAN_MSG": "true",
    "PGROUP": "payers",
    "UNIQ_KEY": "0A",
    "TAGS": "TagA",
    "KEYS": "k1",
    "WAIT": "true",
}
HOST = bytes([10, 0, 0, 9, 0, 0, 0, 1])


def sent(**properties: str) -> Draft:
    return Draft(
        "flights", 3, b"body", encode({**PROPERTIES, **properties}), tag_code=2598919, flag=7,
        sys_flag=5, born_ms=99, born_host=HOST, keys=("0A", "k1"),
    )  # fmt: skip


def stored(draft: Draft, queue_offset: int = 17, physical_offset: int = 4096) -> layout.Record:
    return layout.decode(
        layout.encode(
            draft.topic, draft.body, draft.properties,
            queue_id=draft.queue_id, queue_offset=queue_offset, physical_offset=physical_offset,
            store_ms=1_000, store_host=HOST, flag=draft.flag, sys_flag=draft.sys_flag,
            born_ms=draft.born_ms, born_host=draft.born_host,
            reconsume_times=draft.reconsume_times, prepared_offset=draft.prepared_offset,
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "answer"),
    [("true", True), ("TRUE", True), ("false", False), ("yes", False)],
)
def test_messages_that_become_half_messages(text: str, answer: bool) -> None:
    assert is_transactional(encode({"TRAN_MSG": text})) is answer


def test_names_that_only_look_like_it() -> None:
    assert not is_transactional(encode({"xTRAN_MSG": "true"}))
    assert not is_transactional(encode({"a": "TRAN_MSG"}))


def test_a_half_message_keeps_its_real_topic_and_queue() -> None:
    made = half(sent())
    assert (made.topic, made.queue_id, made.sys_flag) == ("RMQ_SYS_TRANS_HALF_TOPIC", 0, 1)
    assert decode(made.properties) == {**PROPERTIES, "REAL_TOPIC": "flights", "REAL_QID": "3"}
    assert (made.tag_code, made.keys) == (2598919, ("0A", "k1"))


def test_a_half_message_is_never_delayed() -> None:
    assert "DELAY" not in decode(half(sent(DELAY="3")).properties)


def test_commit_gives_the_message_back_and_leaves_javas_marks() -> None:
    record = stored(half(sent()))
    made = committed(record)
    assert made is not None
    assert made.properties == record.properties
    assert (made.sys_flag, made.prepared_offset) == (9, 4096)
    as_sent = msgspec.structs.replace(
        made, properties=sent().properties, sys_flag=5, prepared_offset=0
    )
    assert as_sent == sent()


@pytest.mark.parametrize("properties", [{}, {"REAL_TOPIC": "t", "REAL_QID": "-1"}])
def test_a_half_message_without_a_destination_cannot_be_committed(
    properties: dict[str, str],
) -> None:
    assert committed(stored(Draft("RMQ_SYS_TRANS_HALF_TOPIC", 0, b"", encode(properties)))) is None


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (End("payers", 17, 4096, 8), ""),
        (End("others", 18, 4097, 8), "The producer group wrong"),
        (End("payers", 18, 4097, 8), "The transaction state table offset wrong"),
        (End("payers", 17, 4097, 8), "The commit log offset wrong"),
    ],
)
def test_an_end_must_fit_its_half_message(end: End, words: str) -> None:
    assert mismatch(stored(half(sent())), end) == words


def test_a_mark_is_read_back() -> None:
    mark = done_mark(123, HOST, 5)
    assert mark.topic == "RMQ_SYS_TRANS_OP_HALF_TOPIC"
    assert mark.tag_code == ord("d")
    assert read_op(stored(mark, 9)) == Op(9, 123, 123)


@pytest.mark.parametrize(("tag", "body"), [("x", b"1"), ("d", b"-1"), ("d", b""), ("d", b"1a")])
def test_an_invalid_mark_marks_nothing(tag: str, body: bytes) -> None:
    odd = Draft("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, body, encode({"TAGS": tag}))
    assert read_op(stored(odd, 9)) is None


def test_copies_keep_unchanged_properties() -> None:
    first = half(sent())
    again = put_back(stored(first), {"TRANSACTION_CHECK_TIMES": "3"})
    added = {"TRANSACTION_CHECK_TIMES": "3"}
    assert decode(again.properties) == {**decode(first.properties), **added}
    assert again.prepared_offset == 18  # it names the first copy
    changes = {
        "properties": first.properties,
        "destination": first.destination,
        "prepared_offset": 0,
    }
    assert msgspec.structs.replace(again, **changes) == first
    lost = given_up(stored(again))
    assert (lost.topic, lost.queue_id) == ("TRANS_CHECK_MAX_TIME_TOPIC", 0)
    assert lost.properties == again.properties
    back = resumed(stored(lost))
    assert back.topic == "RMQ_SYS_TRANS_HALF_TOPIC"
    assert decode(back.properties) == {**decode(first.properties), "TRANSACTION_CHECK_TIMES": "0"}


def test_a_question_carries_the_message_as_it_was_sent() -> None:
    record = stored(half(sent()))
    asked = question(record, put_back(record, {"TRANSACTION_CHECK_TIMES": "1"}), 40, 8192)
    assert (asked.group, asked.half_offset, asked.physical_offset) == ("payers", 40, 8192)
    assert asked.unique_key == "0A"
    message = layout.decode(asked.body)
    assert (message.topic, message.queue_id, message.body) == ("flights", 3, b"body")
    assert (message.queue_offset, message.physical_offset) == (40, 8192)
    assert (message.sys_flag, message.born_ms, message.flag) == (1, 99, 7)
    properties = decode(message.properties)
    assert properties["WAIT"] == "false"
    assert properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert properties["PGROUP"] == "payers"


def test_the_longest_message_in_a_transaction_can_wait_for_its_time() -> None:
    """Its copies get further properties, with each check and while it waits."""
    for size in range(limits.PROPERTIES_BYTES_MAX, 0, -1):
        with suppress(UsageError):
            draft = half(sent(TIMER_DELAY_SEC="9", p="x" * size))
            break
    last = str((1 << 63) - 1)
    checks = {"TRANSACTION_CHECK_TIMES": "15", "TRAN_PREPARED_QUEUE_OFFSET": last}
    ended = committed(stored(put_back(stored(draft), checks)))
    assert ended is not None
    assert waiting(ended, 1_700_000_000_000).topic == TIMER_TOPIC
