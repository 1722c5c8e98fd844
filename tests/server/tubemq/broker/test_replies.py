"""The replies of a batch equal those that `_wire.tubemq.sending` encodes one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coherer._server.tubemq.broker.sends import send_replies
from coherer._store import AppendResult
from coherer._wire.tubemq.sending import encode_send_response

near_borders = st.builds(
    lambda power, add: max(0, 2**power + add), st.integers(0, 46), st.integers(-300, 300)
)
offsets = st.integers(0, 2**40) | near_borders


@given(
    st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), offsets, offsets), max_size=20),
    st.integers(1, 0x7FFF),
    st.integers(0, 2**41),
)
def test_batch_replies_equal_single_replies(
    sends: list[tuple[int, int, int]], broker_id: int, append_ms: int
) -> None:
    sends.sort(key=lambda send: send[2])  # the offsets of a batch increase
    first_id = broker_id << 48
    made = send_replies(
        [serial for serial, _, _ in sends],
        [AppendResult(offset, physical, 100) for _, offset, physical in sends],
        first_id,
        append_ms,
    )
    one_by_one = [
        encode_send_response(serial, first_id + physical, append_ms, offset)
        for serial, offset, physical in sends
    ]
    assert made == b"".join(one_by_one)


def test_ids_that_grow_a_digit() -> None:
    first_id = 355 << 48  # 99_923_…
    step = 10**17 - first_id
    results = [AppendResult(0, step + add, 1) for add in (-2, -1, 0, 1)]
    assert send_replies([1, 2, 3, 4], results, first_id, 5) == b"".join(
        encode_send_response(serial, first_id + result.physical_offset, 5, 0)
        for serial, result in enumerate(results, 1)
    )
