"""No text that a peer may send costs the event loop long, or more than its length.

Each parser is given texts that are hard on it, of a quarter of the limit and of the limit. What is
measured is processor time. A cost that grows with the square of the length is 16 times as high for
four times the length; a machine under load makes it a few times higher than it should be. What is
long is said as a multiple of a plain loop's time, which differs between machines as parsing does.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import time
import tracemalloc
from collections.abc import Callable
from typing import Final

import pytest

from coherer import limits
from coherer._record import properties
from coherer._rules.common.java_json import quote_keys
from coherer._server.http.service import AdminService
from coherer._server.tubemq.broker.mapping import Mapper
from coherer._wire.rocketmq import command, fastjson, java_properties
from coherer._wire.rocketmq.bodies import (
    HeartbeatData,
    LockBatch,
    RegisterBody,
    ResetOffset,
    TopicConfigs,
)
from coherer._wire.rocketmq.frame import BINARY, JSON
from coherer._wire.rocketmq.selector import compile_selector
from coherer._wire.rocketmq.subscription import split_tags
from coherer._wire.tubemq.flow import FlowRules
from coherer._wire.tubemq.names import BrokerInfo, Partition, SubscribeInfo
from coherer._wire.tubemq.payload import decode_attributes, split_payload
from coherer.errors import CohererError

MOST: Final = 20
"""The most that a parser may cost, in times of `loop`: about a second on a slow machine."""
GROWTH: Final = 12
"""More than 4, which is linear with what a busy machine adds, and less than 16."""
UNMEASURED_S: Final = 0.02
ATTEMPTS: Final = 5
"""One that is as it should be is enough: a parser that is too slow is so each time."""

Parse = Callable[[str], object]


def cost(parse: Parse, text: str) -> float:
    """The processor time of one call; the best of three, unless the first is short.

    Without the garbage collector: in a process that has run thousands of tests, one full
    collection takes longer than most calls.
    """
    spent: list[float] = []
    gc.disable()
    try:
        for _ in range(3):
            began = time.thread_time()
            with contextlib.suppress(CohererError, ValueError):
                parse(text)
            spent.append(time.thread_time() - began)
            if spent[0] < UNMEASURED_S:
                break
    finally:
        gc.enable()
    return min(spent)


def loop(text: str) -> None:
    """What the speed of this machine is measured by: a million steps."""
    for _ in range(1_000_000):
        pass


@functools.cache
def step(attempt: int) -> float:
    """The processor time of `loop`, measured once for the first attempts, once for the second."""
    return cost(loop, "")


def check(parse: Parse, begin: str, unit: str, end: str, length: int) -> None:
    """The cost for a text of this length is small, and grows with it at most."""

    def text(size: int) -> str:
        return begin + unit * ((size - len(begin) - len(end)) // len(unit)) + end

    found: list[tuple[float, float, float]] = []
    for attempt in range(ATTEMPTS):
        whole = cost(parse, text(length))
        quarter = cost(parse, text(length // 4)) if whole > UNMEASURED_S else whole
        if whole < MOST * step(attempt) and whole < GROWTH * max(quarter, UNMEASURED_S / 4):
            return
        found.append((step(attempt), quarter, whole))
    pytest.fail(f"seconds for the loop, a quarter of the text, and all of it: {found}")


def memory(parse: Parse, text: str) -> int:
    """The most memory that one call needs at a time."""
    tracemalloc.start()
    try:
        with contextlib.suppress(CohererError, ValueError):
            parse(text)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


blanks = itertools.cycle(range(97))


def fresh_selector(text: str) -> None:
    # The cache holds a hundred; a text that differs in its blanks is another.
    compile_selector(f"{text}{' ' * next(blanks)}")


SELECTOR = limits.SELECTOR_CHARS_MAX - 100
WORDS = (
    *("-", "--", "-- ", "--x", "--\n", "- ", "+", "(", ")", "NOT ", "/*", "/**/", "/*/", "*", "'"),
    *(
        "''",
        "0",
        "1",
        "1.",
        ".1",
        "1e1",
        "a",
        "$",
        " ",
        "\n",
        "\r",
        "é",
        "\\",
        "'a',",
        "a = ",
        "=",
        ",",
    ),
    *("a OR ", "a AND ", "a=1 OR ", "a IS NULL AND ", "a IN ('x') OR ", "a BETWEEN 1 AND 2 AND "),
    *("(a) = ", "- -1 = ", "a <> 'x' OR ", "((a=1) OR (b=2)) AND "),
)


@pytest.mark.parametrize("unit", WORDS)
@pytest.mark.parametrize(
    ("begin", "end"), [("", ""), ("a = 1 OR ", " a"), ("a -- x\n = ", "\n1"), ("'", "'")]
)
def test_selectors(begin: str, unit: str, end: str) -> None:
    fresh_selector("a = 1")  # the grammar is loaded once
    check(fresh_selector, begin, unit, end, SELECTOR)


@pytest.mark.parametrize("begin", ["a IN ('x'", "a = 'x' OR a IN ('x'"])
def test_selectors_with_many_words(begin: str) -> None:
    check(fresh_selector, begin, ",'some word'", ")", SELECTOR)


@pytest.mark.parametrize(
    "selector", ["a > 3", "a > 3.0", "a = 3.5", "a > b", "a BETWEEN 1.0 AND 2"]
)
@pytest.mark.parametrize("unit", ["1", "0", "1.", ".", "0x1", "0x", "1e", "e", "+", " ", "é", "9f"])
@pytest.mark.parametrize("end", ["", "x", "e5"])
def test_values_that_selectors_read_as_numbers(selector: str, unit: str, end: str) -> None:
    compiled = compile_selector(selector)
    check(lambda text: compiled.matches({"a": text, "b": text}), "", unit, end, 32_000)


JSON_UNITS = (
    *(
        "[",
        "{",
        "{{",
        "[[]",
        "1,",
        "{},",
        "[],",
        '"a",',
        '""',
        "\\",
        '"\\u0041',
        '"\\ud800",',
        "{1:",
        "{a:",
    ),
    *("-", "1e", "0", " ", "\n", "a", '{"$ref":"$"},', '{"$ref":"$.a"},', "null,", "1.5,", "1:1,"),
    *(
        "a:1,",
        '"a":1,',
        '{"topic":"T","brokerName":"b","queueId":0}:1,',
        "[1]:1,",
        "{}:1,",
        "null:1,",
    ),
)


@pytest.mark.parametrize("unit", JSON_UNITS)
@pytest.mark.parametrize(("begin", "end"), [("", ""), ("[", "1]"), ("{a:[", "1]}"), ("{", "0:1}")])
def test_json(begin: str, unit: str, end: str) -> None:
    check(fastjson.loads, begin, unit, end, 4 << 20)


@pytest.mark.parametrize("unit", ["a", ".a", "[0]", "[", "é", r"\\\\x", r"\\\\\\\\"])
def test_references(unit: str) -> None:
    check(fastjson.loads, '{"a":{"$ref":"$.', unit, '"}}', 4 << 20)


@pytest.mark.parametrize(
    "kind", [HeartbeatData, LockBatch, TopicConfigs, RegisterBody, ResetOffset]
)
@pytest.mark.parametrize(
    "member", ["consumerDataSet", "producerDataSet", "mqSet", "offsetTable", "x"]
)
@pytest.mark.parametrize("unit", ["{},", "[],", "1,", '"a",', '{"a":1},'])
def test_bodies(kind: type[HeartbeatData], member: str, unit: str) -> None:
    check(lambda text: kind.decode(text.encode()), f'{{"{member}":[', unit, "{}]}", 4 << 20)


@pytest.mark.parametrize(
    "unit", ["\\", "\\\\", "=", ":", " ", "\n", "a", "\\u", "\\u0041", "a=1\n", "\\\n"]
)
@pytest.mark.parametrize("begin", ["", "k", "k="])
def test_settings(begin: str, unit: str) -> None:
    check(java_properties.parse, begin, unit, "x", limits.SETTINGS_BYTES_MAX)


@pytest.mark.parametrize(
    "unit", ['"k":"v",', '"é":"\\u0001",', "\\", '{"k":', '"k":1,', "k:v,", "\0"]
)
def test_headers(unit: str) -> None:
    def parse(text: str) -> None:
        command.decode(JSON, text.encode())
        command.decode(BINARY, text.encode())

    check(parse, '{"code":10,"extFields":{', unit, '"k":"v"}}', limits.REMOTING_HEADER_BYTES_MAX)


@pytest.mark.parametrize(
    "unit", ["\1", "\2", "a", "a\1b\2", "\1\2", "TAGS\1", "KEYS\1a \2", "UNIQ_KEY\1"]
)
def test_properties(unit: str) -> None:
    check(lambda text: properties.decode(text.encode()), "", unit, "", limits.PROPERTIES_BYTES_MAX)


@pytest.mark.parametrize("unit", [",", "=", "a=b,", "a,", "$msgType$=a,", "\0", "a=", "é=1,"])
def test_attributes(unit: str) -> None:
    check(decode_attributes, "", unit, "", 1 << 20)

    def store(text: str) -> None:
        block = text.encode()
        data = len(block).to_bytes(4, "big") + block
        Mapper().to_record(data, 1, "")
        split_payload(data, 1)

    check(store, "", unit, "", 4 << 20)


@pytest.mark.parametrize("unit", ["|", "||", " ", "a||", "a || ", "\n"])
def test_tags(unit: str) -> None:
    check(split_tags, "", unit, "", limits.REMOTING_HEADER_BYTES_MAX // 2)


@pytest.mark.parametrize("unit", ["#", ":", "@", "1:", "a#", "-", " ", "0"])
def test_names(unit: str) -> None:
    for parse in (Partition.parse, SubscribeInfo.parse, BrokerInfo.parse):
        check(parse, "", unit, "", 1 << 20)


@pytest.mark.parametrize("unit", ["[", "{", '{"type":0,"rule":[]},', "1,", '"', "\\", "0:"])
def test_flow_rules(unit: str) -> None:
    check(FlowRules.parse, "[", unit, "]", 1 << 18)


@pytest.mark.parametrize("unit", ["a=1&", "&", "%", "%41", "+", "=", ";", "a=b=", "%u", "é"])
def test_forms(unit: str) -> None:
    service = AdminService()
    size = limits.ADMIN_REQUEST_BYTES_MAX

    def post(form: str) -> object:
        return service.respond("/webapi.htm", form, {}, post=True)

    def get(target: str) -> object:
        return service.respond(target, "", {}, post=False)

    check(post, "method=x&", unit, "", size)
    check(get, "/webapi.htm?", unit, "", size)


@pytest.mark.parametrize("unit", ["a", r"\\\\x", "'' "])
@pytest.mark.parametrize(
    ("parse", "begin", "end", "length"),
    [
        (fastjson.loads, '{"a":{"$ref":"$.', '"}}', 4 << 20),
        (java_properties.parse, "k", "=1", limits.SETTINGS_BYTES_MAX),
        (java_properties.parse, "k=", "", limits.SETTINGS_BYTES_MAX),
        (lambda text: quote_keys(text.encode()), '{"a":"', '"}', 1 << 20),
        (fresh_selector, "a = '", "'", SELECTOR),
        (fresh_selector, "/* ", " */ a = 1", SELECTOR),
    ],
)
def test_one_long_word_needs_little_memory(
    parse: Parse, begin: str, unit: str, end: str, length: int
) -> None:
    """A pattern that can go back remembers each step: 150 to 1,000 bytes for each character."""
    memory(parse, f"{begin}{end}")  # the grammar of selectors is loaded once
    text = begin + unit * (length // len(unit)) + end
    assert memory(parse, text) < 40 * len(text)
