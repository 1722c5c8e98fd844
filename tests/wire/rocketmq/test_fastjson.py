from __future__ import annotations

import json
from enum import Enum

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._wire.rocketmq.fastjson import dumps, dumps_strict, loads, loads_unlimited, to_text
from coherer._wire.rocketmq.names import Queue
from coherer.errors import ProtocolError
from coherer.limits import JSON_DEPTH_MAX, JSON_VALUES_MAX

numbers = st.integers(-(2**63), 2**63 - 1)
words = st.text(max_size=6)
queues = st.builds(Queue, words, words, st.integers(-(2**31), 2**31 - 1))
leaves = st.booleans() | numbers | words | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(words.filter(lambda w: w != "$ref"), inner, max_size=3)
        | st.dictionaries(numbers, inner, max_size=3)
        | st.dictionaries(queues, inner, max_size=3)
    ),
    max_leaves=20,
)


@given(values)
def test_loads_reverses_dumps(value: object) -> None:
    assert loads(dumps(value)) == value


@given(st.recursive(leaves, lambda v: st.lists(v) | st.dictionaries(words, v), max_leaves=9))
def test_strict_json_is_accepted(value: object) -> None:
    if b'"$ref"' not in json.dumps(value).encode():
        assert loads(json.dumps(value)) == value


@given(
    st.one_of(
        st.binary(max_size=60),
        st.text(alphabet='{}[]":,0aef.-+ \\utrnls$"ref', max_size=40).map(str.encode),
        values.map(dumps).flatmap(lambda data: st.integers(0, len(data)).map(lambda n: data[:n])),
    )
)
def test_any_bytes_are_a_value_or_a_protocol_error(data: bytes) -> None:
    try:
        value = loads(data)
    except ProtocolError:
        return
    if b"\xff" not in data:
        assert loads(dumps(value)) is not NotImplemented


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('{0:"a",1:"b"}', {0: "a", 1: "b"}),
        (
            "{-5:1,2.5:2,true:3,null:4,bare:5,$x:6}",
            {-5: 1, 2.5: 2, True: 3, None: 4, "bare": 5, "$x": 6},
        ),
        (
            '{{"brokerName":"b","queueId":0,"topic":"T"}:5}',
            {Queue("T", "b", 0): 5},
        ),
        ('{{"a":1}:2,[1,[2]]:3}', {(("a", 1),): 2, (1, (2,)): 3}),
        (
            # As persisted by Java: tabs and irregular line breaks.
            '{\n\t"t":{\n\t\t"T@g":{0:5,1:7\n\t},{"topic":"T", "brokerName":"b","queueId":1}:1}\n}',
            {"t": {"T@g": {0: 5, 1: 7}, Queue("T", "b", 1): 1}},
        ),
        (
            "{1:9223372036854775807,2:-9223372036854775774,3:1.0E10,4:1e3}",
            {1: 2**63 - 1, 2: -(2**63) + 34, 3: 1e10, 4: 1000.0},
        ),
        ('{0:"tab\\t\\u0001 \u0002 \\ud83d\\ude00 /"}', {0: "tab\t\x01 \x02 😀 /"}),
    ],
)
def test_the_json_of_java_is_read(source: str, expected: object) -> None:
    assert loads(source.encode()) == loads(source) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('{"a":{"b":[{"c":1}]},"d":{"$ref":"$.a.b[0]"}}', {"a": {"b": [{"c": 1}]}, "d": {"c": 1}}),
        ('[{"x":1},{"$ref":"$[0]"}]', [{"x": 1}, {"x": 1}]),
        (
            '{"consumerTable":{"10.0.0.9@a":{0:1},"b":{"$ref":"$.consumerTable.10\\\\.0\\\\.0\\\\.9\\\\@a"}}}',
            {"consumerTable": {"10.0.0.9@a": {0: 1}, "b": {0: 1}}},
        ),
        (
            '{"t":{7:{"x":1}},"u":{"$ref":"$.t.7"},"v":{"$ref":"$.t[7]"}}',
            {"t": {7: {"x": 1}}, "u": {"x": 1}, "v": {"x": 1}},
        ),
        ('{"a":{"$ref":"$.b"},"b":{"$ref":"$.c"},"c":[1]}', {"a": [1], "b": [1], "c": [1]}),
        ('{"a":"\\"$ref\\""}', {"a": '"$ref"'}),
    ],
)
def test_references(source: str, expected: object) -> None:
    assert loads(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '{"a":{"$ref":"$"}}',
        '{"a":{"b":{"$ref":".."}}}',
        '{"a":{"$ref":"@"}}',
        '{"a":{"$ref":"$.a"}}',
        '{"a":{"$ref":"$.b"},"b":{"$ref":"$.a"}}',
        '{"a":{"$ref":"$.x"}}',
        '{"a":{"$ref":"$x"}}',
        '[{"$ref":"$[9]"}]',
    ],
)
def test_invalid_references_are_refused(source: str) -> None:
    with pytest.raises(ProtocolError):
        loads(source)


def test_a_small_text_cannot_expand_without_limit() -> None:
    levels = {"l0": [1]} | {f"l{n}": [{"$ref": f"$.l{n - 1}"}] * 10 for n in range(1, 30)}
    with pytest.raises(ProtocolError, match="expands to more"):
        loads(json.dumps(levels))


@pytest.mark.parametrize(
    "source",
    [
        "",
        "{",
        "[",
        '{"a"}',
        '{"a":}',
        "{1:2,}",
        "[1,]",
        "{1:2 3:4}",
        "nope",
        '"a',
        "{1:2}}",
        "01x",
        "-",
        '{1:"\\q"}',
        "{1:" + "9" * 9000 + "}",
        "{1:" + "[" * (JSON_DEPTH_MAX + 1),
        "{1:" * 99999,
    ],
)
def test_invalid_json_is_refused(source: str) -> None:
    with pytest.raises(ProtocolError):
        loads(source)


class Colour(Enum):
    RED = 7


class Thing(msgspec.Struct, rename="camel"):
    zebra: int = 1
    an_apple: str | None = None
    colour: Colour = Colour.RED


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": None, "b": [None, True], "c": ()}, '{"b":[null,true],"c":[]}'),
        (Thing(), '{"colour":"RED","zebra":1}'),
        ({"x": b"\x00\xff"}, '{"x":"AP8="}'),
        ({"x": {"s"}, "y": frozenset()}, '{"x":["s"],"y":[]}'),
        (
            [0.0, 1e7, 0.001, 123456.789, 1.5e300, -2e-5],
            "[0.0,1.0E7,0.001,123456.789,1.5E300,-2.0E-5]",
        ),
        ({'ä/\x01\n"': "😀"}, '{"ä/\\u0001\\n\\"":"😀"}'),
        ({True: 1}, "{true:1}"),
        ("\ud800", '"?"'),
    ],
)
def test_dumps_equals_java(value: object, expected: str) -> None:
    assert dumps(value).decode() == expected


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError):
        dumps(object())


def test_to_text_follows_java() -> None:
    assert [to_text(value) for value in ("x", 5, True, False, 1.5, {"a": 1}, None)] == [
        "x",
        "5",
        "true",
        "false",
        "1.5",
        '{"a":1}',
        "null",
    ]
    assert dumps_strict({"a": "\ud800"}) == b'{"a":"?"}'


@pytest.mark.parametrize("item", ["1", "[]", "{1:2}", '"a"', "null"])
def test_the_json_of_peers_is_limited_and_that_of_files_is_not(item: str) -> None:
    source = f"[{','.join([item] * (JSON_VALUES_MAX + 1))}]"
    with pytest.raises(ProtocolError, match="more than"):
        loads(source)
    found = loads_unlimited(source)
    assert isinstance(found, list)
    assert len(found) == JSON_VALUES_MAX + 1
    assert len(str(loads(f"[{item},{item}]"))) > 2
