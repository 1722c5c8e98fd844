"""Commands: requests and answers, as a header in JSON or binary and a body.

See docs/protocol/rocketmq.md, sections 1.2 and 1.3. Both serializations are read. JSON is written
by default: servers of RocketMQ always answer in JSON.

msgspec reads strict JSON of strings. Other input falls back to a lenient reader which accepts what
Java accepts: numbers and booleans among the fields, numbers as text, a language by its number,
malformed UTF-8. A header without language or version, which no known client sends, gets Coherer's.
"""

from __future__ import annotations

import struct
from struct import Struct as Layout
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct, field

from coherer._wire.rocketmq import fastjson
from coherer._wire.rocketmq.codes import LANGUAGE_NUMBERS, LANGUAGES, PYTHON, V4_9_3, language_name
from coherer._wire.rocketmq.frame import BINARY, JSON, prefix
from coherer.errors import ProtocolError, UsageError
from coherer.limits import REMOTING_HEADER_BYTES_MAX

RESPONSE: Final = 1
ONEWAY: Final = 2
"""Bits of `Command.flag`."""

INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1

Int32: TypeAlias = Annotated[int, Meta(ge=INT32_MIN, le=INT32_MAX)]
"""Java's Integer."""
Int64: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""Java's Long."""

if TYPE_CHECKING:
    Body: TypeAlias = bytes | memoryview
else:
    Body = Any  # msgspec does not support this union, and never decodes the member

_BINARY: Final = Layout(">hbhiii")  # code, language, version, opaque, flag, length of the remark
_BINARY_CODE_MAX: Final = 0x7FFF
_INT: Final = Layout(">i")
_SHORT: Final = Layout(">h")


class Command(Struct, gc=False):
    """A request or an answer.

    Args:
        code: `codes.RequestCode` or `codes.ResponseCode`.
        opaque: the number that links an answer to its request, 32 bits signed.
        flag: bits `RESPONSE` and `ONEWAY`.
        language: the writer's language (`codes.LANGUAGES`); None if unknown.
        version: the writer's release, as in `codes`.
        remark: text for people, usually an error.
        fields: the custom header; `headers.parse` makes a typed header of it.

    >>> Command(105, 7, fields={"topic": "TopicTest"}).is_response
    False
    """

    code: Int32
    opaque: Int32 = 0
    flag: Int32 = 0
    language: str | None = PYTHON
    version: Int32 = V4_9_3
    remark: str | None = None
    fields: dict[str, str] = field(default_factory=dict[str, str], name="extFields")
    # Not part of the header: set from the frame after decoding.
    body: Body = field(default=b"", name="")

    @property
    def is_response(self) -> bool:
        """Whether this is an answer."""
        return bool(self.flag & RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Whether this request must not be answered."""
        return bool(self.flag & ONEWAY)


def encode(command: Command, *, binary: bool = False) -> bytes:
    """Return the frame of a command.

    Args:
        binary: write the header in binary instead of JSON.

    Raises:
        UsageError: binary cannot hold the code, or a name or number is too long.
        ProtocolError: the frame would be larger than any peer accepts.

    >>> encode(Command(105, 7, fields={"topic": "TopicTest"}), binary=True).hex()
    '0000002d01000029006903018f...140005746f70696300000009546f70696354657374'
    """
    return encode_head(command, len(command.body), binary=binary) + command.body


def encode_head(command: Command, body_bytes: int, *, binary: bool = False) -> bytes:
    """Return the frame of a command up to its body, which the caller appends.

    Args:
        command: the command; its body is ignored.
        body_bytes: the size of the body.
        binary: write the header in binary instead of JSON.

    Raises:
        UsageError: binary cannot hold the code, or a name or number is too long.
        ProtocolError: the frame would be larger than any peer accepts.
    """
    if binary:
        header = _binary_header(command)
        return prefix(BINARY, len(header), body_bytes) + header
    header = _json_header(command)
    return prefix(JSON, len(header), body_bytes) + header


def decode(kind: int, header: bytes, body: bytes | memoryview = b"") -> Command:
    """Decode the contents of a frame.

    Args:
        kind: the frame's type byte.
        header: its header.
        body: its body.

    Raises:
        ProtocolError: the header is not valid; close the connection.
    """
    if len(header) > REMOTING_HEADER_BYTES_MAX:
        raise ProtocolError(
            f"A header has {len(header)} bytes; {REMOTING_HEADER_BYTES_MAX} are allowed."
        )
    if kind == BINARY:
        command = _read_binary(header)
    else:
        try:
            command = _read_strict(header)
            if command.language not in LANGUAGE_NUMBERS:
                command.language = None
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            command = _read_leniently(header)
    command.body = body
    return command


_read_strict: Final = msgspec.json.Decoder(Command).decode


def _json_header(command: Command) -> bytes:
    remark, fields = command.remark, command.fields
    members: dict[str, object] = {"code": int(command.code)}
    if fields:
        members["extFields"] = fields
    members["flag"] = command.flag
    members["language"] = command.language or LANGUAGES[0]
    members["opaque"] = command.opaque
    if remark is not None:
        members["remark"] = remark
    members["serializeTypeCurrentRPC"] = "JSON"
    members["version"] = command.version
    return fastjson.dumps_strict(members)


def _binary_header(command: Command) -> bytes:
    if not 0 <= command.code <= _BINARY_CODE_MAX:
        raise UsageError(f"A binary header holds codes up to {_BINARY_CODE_MAX}.")
    remark = fastjson.utf8(command.remark or "")
    pairs: list[bytes] = []
    try:
        for name, value in command.fields.items():
            name_bytes, value_bytes = fastjson.utf8(name), fastjson.utf8(value)
            pairs += (_SHORT.pack(len(name_bytes)), name_bytes)
            pairs += (_INT.pack(len(value_bytes)), value_bytes)
        language = LANGUAGE_NUMBERS.get(command.language or "", 0)
        packed = b"".join(pairs)
        head = _BINARY.pack(
            command.code, language, command.version, command.opaque, command.flag, len(remark)
        )
    except struct.error as error:
        raise UsageError(f"A binary header cannot hold this: {error}.") from error
    return head + remark + _INT.pack(len(packed)) + packed


def _read_binary(header: bytes) -> Command:
    try:
        code, language, version, opaque, flag, size = _BINARY.unpack_from(header)
        position = _BINARY.size
        remark = _piece(header, position, size)
        position += size
        (size,) = _INT.unpack_from(header, position)
        pairs = _piece(header, position + _INT.size, size)
        fields = _read_pairs(pairs)
    except struct.error as error:
        raise ProtocolError("A binary header ends too early.") from error
    text = str(remark, "utf-8", "replace") if remark else None
    return Command(code, opaque, flag, language_name(language), version, text, fields)


def _read_pairs(data: bytes) -> dict[str, str]:
    fields: dict[str, str] = {}
    position, size = 0, len(data)
    while position < size:
        (length,) = _SHORT.unpack_from(data, position)
        name = _piece(data, position + _SHORT.size, length)
        position += _SHORT.size + length
        (length,) = _INT.unpack_from(data, position)
        value = _piece(data, position + _INT.size, length)
        position += _INT.size + length
        fields[str(name, "utf-8", "replace")] = str(value, "utf-8", "replace")
    return fields


def _piece(data: bytes, start: int, size: int) -> bytes:
    if not 0 <= size <= len(data) - start:
        raise ProtocolError(f"A binary header cannot hold {size} bytes here.")
    return data[start : start + size]


def _read_leniently(header: bytes) -> Command:
    """Decode a header that Java accepts, though Java does not write such headers."""
    members = fastjson.loads(header)
    if not isinstance(members, dict):
        raise ProtocolError("A header is not a JSON object.")
    language = members.get("language", PYTHON)
    remark, fields = members.get("remark"), members.get("extFields")
    if not isinstance(fields, dict):
        fields = {}
    return Command(
        _int32(members.get("code"), 0),
        _int32(members.get("opaque"), 0),
        _int32(members.get("flag"), 0),
        language_name(language if isinstance(language, str | int) else None),
        _int32(members.get("version"), V4_9_3),
        None if remark is None else fastjson.to_text(remark),
        {
            fastjson.to_text(name): fastjson.to_text(value)
            for name, value in fields.items()
            if value is not None
        },
    )


def _int32(value: object, absent: int) -> int:
    """Read a number that may be given as text.

    Raises:
        ProtocolError: it is not a number, or does not fit into 32 bits.
    """
    if value is None:
        return absent
    try:
        number = int(fastjson.to_text(value))
    except ValueError as error:
        raise ProtocolError(f"A header contains {value!r} instead of a number.") from error
    if not INT32_MIN <= number <= INT32_MAX:
        raise ProtocolError(f"A header contains {number}, which does not fit into 32 bits.")
    return number
