"""What is remembered of a producer's texts changes nothing of what becomes of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from coherer.record.properties import decode, index_keys
from coherer.server.rocketmq.broker.texts import ItemTexts, PropertyTexts

PIECES = st.sampled_from(
    ["UNIQ_KEY\x01", "KEYS\x01", "TAGS\x01", "WAIT\x01", "TUBE\x01", "DELAY\x01", "TRAN_MSG\x01"]
    + ["\x02", "\x02", "\x02", "true", "false", "0A1B", "k w", "x", "UNIQ_KEY", "\x01", "é"]
)
TEXTS = st.lists(PIECES, max_size=9).map("".join)
IDS = ["0F", "0G", "", "KEYS\x01z", "UNIQ_KEY\x01z"]


def _alike(text: str) -> list[str]:
    """The text, and others that differ in the id only."""
    return [text, *(text.replace("0A1B", other) for other in IDS), text]


@given(st.lists(TEXTS, max_size=4))
@settings(max_examples=200)
def test_single_sends(texts: list[str]) -> None:
    warm = PropertyTexts("C")
    for text in [other for text in texts for other in _alike(text)]:
        found = warm.stored(text)
        assert found == PropertyTexts("C").stored(text)
        assert decode(found.data)["CLUSTER"] == "C"


@given(st.lists(TEXTS, max_size=4), st.sampled_from(["", "WAIT\x01true", "KEYS\x01own"]))
@settings(max_examples=200)
def test_messages_of_batches(texts: list[str], own: str) -> None:
    warm = ItemTexts(own, "C")
    for text in [other.encode() for text in texts for other in _alike(text)]:
        data, code, keys = warm.stored(text)
        assert (data, code, keys) == ItemTexts(own, "C").stored(text)
        assert keys == index_keys(decode(data))
