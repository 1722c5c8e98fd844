from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._wire.rocketmq.codes import LANGUAGES
from coherer._wire.rocketmq.command import ONEWAY, RESPONSE, Command, decode, encode, encode_head
from coherer._wire.rocketmq.frame import BINARY, JSON, FrameDecoder
from coherer._wire.rocketmq.session import Session
from coherer.errors import ProtocolError, UsageError

int32 = st.integers(-(2**31), 2**31 - 1)
texts = st.text(max_size=12)
commands = st.builds(
    Command,
    code=st.integers(0, 0x7FFF),
    opaque=int32,
    flag=int32,
    language=st.sampled_from(LANGUAGES),
    version=st.integers(-(2**15), 2**15 - 1),
    remark=st.one_of(st.none(), st.text(min_size=1, max_size=12)),
    fields=st.dictionaries(texts, texts, max_size=4),
    body=st.binary(max_size=20),
)


def read(frame: bytes) -> Command:
    [(kind, header, body)] = FrameDecoder().feed(frame)
    return decode(kind, header, body)


@given(commands, st.booleans())
def test_decoding_reverses_encoding(command: Command, binary: bool) -> None:
    assert read(encode(command, binary=binary)) == command
    assert encode_head(command, len(command.body), binary=binary) + command.body == encode(
        command, binary=binary
    )


@given(commands)
def test_java_reads_the_header(command: Command) -> None:
    """Strict JSON, members in Java's order, all fields as text, no nulls."""
    [(kind, header, _)] = FrameDecoder().feed(encode(command))
    members = json.loads(header)
    assert kind == JSON
    assert list(members) == sorted(members)
    assert None not in members.values()
    assert members.get("extFields", {}) == command.fields
    assert members["serializeTypeCurrentRPC"] == "JSON"


@given(st.one_of(st.binary(max_size=60), commands.map(lambda c: encode(c, binary=True)[8:40])))
def test_any_bytes_are_a_binary_header_or_a_protocol_error(header: bytes) -> None:
    try:
        command = decode(BINARY, header)
    except ProtocolError:
        return
    assert read(encode(command, binary=True)).fields == command.fields


@given(
    st.one_of(
        st.binary(max_size=60),
        st.text(alphabet='{}[]":,0aef.-+ \\utrnls$', max_size=40).map(str.encode),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | texts,
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        ("code", "flag", "opaque", "language", "extFields", "remark", "x")
                    ),
                    inner,
                    max_size=7,
                )
            ),
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_any_bytes_are_a_json_header_or_a_protocol_error(header: bytes) -> None:
    try:
        command = decode(JSON, header)
    except ProtocolError:
        return
    assert all(isinstance(text, str) for pair in command.fields.items() for text in pair)
    assert read(encode(command)).code == command.code


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        # ali-ons sends numbers and booleans as fields (14).
        (
            '{"code":310,"extFields":{"d":4,"g":1650000000000,"k":false,"l":null,"x":1.5},"opaque":4}',
            Command(
                310,
                4,
                fields={"d": "4", "g": "1650000000000", "k": "false", "x": "1.5"},
            ),
        ),
        # Java's library accepts these too (docs/protocol/rocketmq.md, section 1.2).
        (
            ' {"opaque":"9" , "code":"105","zzz":[{}],"version":399,"flag":"2","language":9}\n',
            Command(105, 9, ONEWAY, "GO"),
        ),
        ('{"code":1,"language":"COBOL","version":0}', Command(1, language=None, version=0)),
        ('{"code":1,"language":77,"version":0}', Command(1, language=None, version=0)),
        (
            '{"code":1,"version":5,"remark":null,"extFields":null}',
            Command(1, version=5),
        ),
        ('{"code":1,"version":5,"":"aGVsbG8="}', Command(1, version=5)),
        ('{"code":1,"version":5,"":7,"body":[]}', Command(1, version=5)),
    ],
)
def test_headers_that_java_accepts_are_accepted(header: str, expected: Command) -> None:
    assert decode(JSON, header.encode()) == expected


@pytest.mark.parametrize(
    "header",
    [
        "",
        "[]",
        "null",
        "7",
        '{"code":"x"}',
        '{"code":4294967296}',
        '{"code":1.5}',
        '{"code":[1]}',
        '{"code":1,"opaque":2147483648}',
        '{"code":1',
        "[" * 100_000,
        '{"code":1,"extFields":{"a":' + "[" * 500 + "]" * 500 + "}}",
        '{"extFields":' * 50_000,
        '{"code":' + "9" * 10_000 + "}",
    ],
)
def test_invalid_headers_are_refused(header: str) -> None:
    with pytest.raises(ProtocolError):
        decode(JSON, header.encode())


@pytest.mark.parametrize("name", ["remark", "code", "x", "extFields"])
@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a":', "}")])
def test_headers_of_any_depth_are_read_or_refused(name: str, begin: str, end: str) -> None:
    for depth in (1, 63, 64, 65, 300, 400, 500, 900, 990, 5000):
        header = f'{{"code":1,"{name}":{begin * depth}1{end * depth}}}'
        try:
            assert decode(JSON, header.encode()).code == 1
        except ProtocolError:
            assert depth > 60 or name == "code"


def test_malformed_utf_8_is_read_with_replacements() -> None:
    found = decode(JSON, b'{"code":1,"extFields":{"a":"\xff"},"remark":"\\ud800"}')
    assert found.fields == {"a": "\ufffd"}
    assert found.remark == "?"


def test_lone_surrogates_are_written_as_in_java() -> None:
    found = read(encode(Command(1, remark="\ud800", fields={"a": "\udfff"})))
    assert (found.remark, found.fields) == ("?", {"a": "?"})
    found = read(encode(Command(1, remark="\ud800", fields={"a": "\udfff"}), binary=True))
    assert (found.remark, found.fields) == ("?", {"a": "?"})


@pytest.mark.parametrize(
    "command",
    [
        Command(32768),
        Command(-1),
        Command(1, version=40000),
        Command(1, opaque=2**31),
        Command(1, fields={"a" * 40000: "b"}),
    ],
)
def test_values_too_large_for_the_binary_header_are_refused(command: Command) -> None:
    with pytest.raises(UsageError):
        encode(command, binary=True)


@pytest.mark.parametrize(
    ("remark_bytes", "fields_bytes"), [(-1, 0), (2**30, 0), (0, -5), (0, 2**30)]
)
def test_invalid_lengths_in_a_binary_header_are_refused(
    remark_bytes: int, fields_bytes: int
) -> None:
    head = struct.pack(">hbhiii", 1, 0, 0, 0, 0, remark_bytes)
    with pytest.raises(ProtocolError):
        decode(BINARY, head + struct.pack(">i", fields_bytes))


@pytest.mark.parametrize(
    "pairs",
    [
        struct.pack(">h", -1),
        struct.pack(">h", 9) + b"a",
        struct.pack(">hci", 1, b"a", -1),
        struct.pack(">hci", 1, b"a", 2**31 - 1),
        struct.pack(">hc", 1, b"a"),
    ],
)
def test_invalid_fields_in_a_binary_header_are_refused(pairs: bytes) -> None:
    head = struct.pack(">hbhiiii", 1, 0, 0, 0, 0, 0, len(pairs))
    with pytest.raises(ProtocolError):
        decode(BINARY, head + pairs)


def test_bytes_behind_the_fields_are_ignored() -> None:
    frame = encode(Command(1, fields={"a": "b"}), binary=True)
    assert decode(BINARY, frame[8:] + b"junk").fields == {"a": "b"}


def test_commands_before_an_error_are_returned() -> None:
    session = Session()
    good = encode(Command(1, 5))
    bad = struct.pack(">iI", 6, 2) + b"[]"
    assert [command.opaque for command in session.receive(good + bad + good)] == [5]
    for data in (b"", good):
        with pytest.raises(ProtocolError):
            session.receive(data)
    with pytest.raises(ProtocolError):
        Session().receive(bad + good)


@given(st.lists(commands, max_size=4), st.integers(1, 50))
def test_a_session_in_chunks_of_any_size(sent: list[Command], step: int) -> None:
    stream = b"".join(encode(each, binary=bool(at % 2)) for at, each in enumerate(sent))
    session = Session()
    found = [
        c for at in range(0, len(stream), step) for c in session.receive(stream[at : at + step])
    ]
    assert found == sent


def test_numbers_of_requests_wrap_around() -> None:
    session = Session(first_opaque=2**31 - 1)
    assert [session.request(1)[0] for _ in range(3)] == [2**31 - 1, -(2**31), -(2**31) + 1]


def test_requests_and_answers_of_a_session() -> None:
    client, server = Session("GO", binary=True), Session()
    opaque, frame = client.request(15, {"a": "b"}, b"x", oneway=True, remark="why")
    assert frame[4] == BINARY
    [request] = server.receive(frame)
    assert request == Command(15, opaque, ONEWAY, "GO", remark="why", fields={"a": "b"}, body=b"x")
    assert request.is_oneway
    assert not request.is_response
    answer = server.response(request, 17, "No.", {"c": "d"}, b"yz")
    assert answer[4] == JSON
    assert answer == server.response_head(request, 17, "No.", {"c": "d"}, 2) + b"yz"
    assert client.receive(answer) == [
        Command(17, opaque, RESPONSE, remark="No.", fields={"c": "d"}, body=b"yz")
    ]
