"""Caching of property texts does not change the result."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from coherer._record.properties import decode, index_keys
from coherer._server.rocketmq.broker.send_properties import (
    BatchPropertyRewriter,
    PropertyRewriter,
)

NAMES = ["UNIQ_KEY", "KEYS", "TAGS", "WAIT", "TUBE", "DELAY", "TRAN_MSG"]
PIECES = st.sampled_from(
    [*(f"{name}\x01" for name in NAMES), *["\x02"] * 3, "true", "false", "0A1B", "k w", "x", "é"]
)
TEXTS = st.lists(PIECES, max_size=9).map("".join)
IDS = ["0F", "0G", "", "KEYS\x01z", "UNIQ_KEY\x01z"]


def _alike(text: str) -> list[str]:
    """The text, and others that differ in the id only."""
    return [text, *(text.replace("0A1B", other) for other in IDS), text]


@given(st.lists(TEXTS, max_size=4))
@settings(max_examples=200)
def test_single_sends(texts: list[str]) -> None:
    warm = PropertyRewriter("C")
    for text in [other for one in texts for other in _alike(one)]:
        found = warm.stored(text)
        assert found == PropertyRewriter("C").stored(text)
        assert decode(found.data)["CLUSTER"] == "C"


@given(st.lists(TEXTS, max_size=4), st.sampled_from(["", "WAIT\x01true", "KEYS\x01own"]))
@settings(max_examples=200)
def test_messages_of_batches(texts: list[str], own: str) -> None:
    warm = BatchPropertyRewriter(own, "C")
    many = [other.encode() for one in texts for other in _alike(one)]
    rows = list(zip(*warm.stored(many), strict=True))
    assert len(rows) == len(many)
    for text, (data, code, keys) in zip(many, rows, strict=True):
        assert ([data], [code], [keys]) == BatchPropertyRewriter(own, "C").stored([text])
        assert keys == index_keys(decode(data))
    assert list(zip(*warm.stored(many), strict=True)) == rows
