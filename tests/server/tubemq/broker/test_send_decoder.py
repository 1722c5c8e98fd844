"""Sends decoded with cached prefixes equal fully parsed ones."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._server.core.core import Core
from coherer._server.tubemq.broker.mapping import Mapper
from coherer._server.tubemq.broker.sends import SendCache, SendDecoder
from coherer._server.tubemq.broker.state import BrokerState
from coherer._server.tubemq.refusal import Refusal
from coherer._store import Store, StoreOptions
from coherer._wire.tubemq.envelope import encode_field
from coherer._wire.tubemq.payload import checksum
from coherer.errors import ProtocolError
from coherer.testing import ManualClock
from tests.server.broker_harness import OPTIONS, TOPICS, send_request


@pytest.fixture(scope="module")
def sending_state(tmp_path_factory: pytest.TempPathFactory) -> Iterable[BrokerState]:
    directory = tmp_path_factory.mktemp("sending")
    clock = ManualClock()
    options = StoreOptions(segment_bytes=1 << 20, index_enabled=False)
    with Store.open(directory, options, now_ms=clock.now_ms) as store:
        state = BrokerState(OPTIONS, Core(store, clock.now_ms))
        state.topics.replace(TOPICS)
        state.serving = True
        state.changed()
        yield state


requests = st.builds(
    send_request,
    clientId=st.sampled_from(["p1", "p2", "", "x" * 130]),
    topicName=st.sampled_from(["demo", "small", "closed", "unknown"]),
    partitionId=st.sampled_from([0, 1, 2, 3, 127, 128, 10_000, 10_002, 16_384, 20_000, -1]),
    data=st.sampled_from([b"", b"x", b"y" * 127, b"z" * 128, b"z" * 16_383, b"z" * 16_384])
    | st.binary(max_size=30),
    flag=st.sampled_from([0, 1, 2, -1]),
    checkSum=st.sampled_from([-1, -1, 0, checksum(b"x")]),
    sentAddr=st.integers(-(2**31), 2**31 - 1),
    msgType=st.sampled_from(["", "A", " B "]),
    msgTime=st.sampled_from(["", "202401010000"]),
)

wholes = requests.map(lambda request: request.SerializeToString())

odd = st.one_of(
    st.binary(max_size=40),
    # fields said again behind the others, which overrule those before
    st.builds(
        lambda whole, name, number: whole + name + number,
        wholes,
        st.sampled_from(
            [encode_field(1, b"p2"), encode_field(2, b"small"), encode_field(4, b"other"), b""]
        ),
        st.sampled_from([b"\x18\x01", b"\x18\x63", b"\x30\x00", b""]),
    ),
    st.builds(lambda whole, at: whole[:at], wholes, st.integers(0, 200)),
    st.builds(
        lambda whole, at, byte: whole[:at] + bytes([byte]) + whole[at + 1 :],
        wholes,
        st.integers(0, 60),
        st.integers(0, 255),
    ),
)


def outcome(reader: SendDecoder, body: bytes) -> object:
    try:
        return reader.decode(body, 5)
    except Refusal as refusal:
        return refusal.code, refusal.text
    except ProtocolError:
        return ProtocolError


@given(bodies=st.lists(wholes | odd, min_size=1, max_size=12))
def test_cached_decoding_equals_full_parsing(
    sending_state: BrokerState, bodies: list[bytes]
) -> None:
    mapper = Mapper()
    learned = SendDecoder(SendCache(sending_state, mapper))
    for body in bodies * 2:
        fresh = SendDecoder(SendCache(sending_state, mapper))
        assert outcome(learned, body) == outcome(fresh, body)
