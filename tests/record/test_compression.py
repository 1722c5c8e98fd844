from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._record.compression import compress, decompress
from coherer.errors import DamagedStoreError


@given(st.binary(max_size=5000))
def test_round_trip(body: bytes) -> None:
    assert decompress(compress(body), limit_bytes=5000) == body
    assert decompress(memoryview(zlib.compress(body, 9)), limit_bytes=5000) == body


def test_decompression_is_limited() -> None:
    bomb = compress(bytes(10_000_000))
    with pytest.raises(DamagedStoreError, match="exceeds 1000 bytes"):
        decompress(bomb, limit_bytes=1000)


@pytest.mark.parametrize("data", [b"", b"no zlib", compress(b"hello" * 100)[:-5]])
def test_incomplete_data_is_rejected(data: bytes) -> None:
    with pytest.raises(DamagedStoreError):
        decompress(data, limit_bytes=1000)
