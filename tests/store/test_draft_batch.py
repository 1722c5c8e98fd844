"""A batch of drafts is stored byte for byte like single drafts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coherer._record.layout import COMMITTED, PREPARED, ROLLED_BACK
from coherer._store import Draft, DraftBatch
from coherer.errors import UsageError
from coherer.limits import PROPERTIES_BYTES_MAX

V4, V6 = b"\x0a\0\0\x02\0\0\0\x07", bytes(range(20))
TEXTS = {b"": (), b"UNIQ_KEY\x01" + b"0F" * 16: ("0F" * 16,), b"KEYS\x01k w": ("k", "w")}


@st.composite
def drafts(draw: Any) -> DraftBatch:
    bodies = draw(st.lists(st.integers(0, 3000).map(bytes), min_size=1, max_size=20))
    count = len(bodies)
    texts = draw(st.lists(st.sampled_from(list(TEXTS)), min_size=count, max_size=count))
    flags = draw(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=count, max_size=count))
    return DraftBatch(
        draw(st.sampled_from(["t", "u", "SCHEDULE_TOPIC_XXXX"])),
        draw(st.integers(0, 2)),
        bodies,
        texts,
        draw(st.lists(st.integers(0, 9), min_size=count, max_size=count)),
        flags,
        [TEXTS[text] for text in texts],
        sys_flag=draw(st.sampled_from([0, 1, 2, PREPARED, COMMITTED, ROLLED_BACK])),
        born_ms=5,
        born_host=draw(st.sampled_from([V4, V6])),
        reconsume_times=3,
    )


def files_of(store: Any) -> dict[str, bytes]:
    """The content of log and queues; the names of index files are times."""
    store.flush_queues()
    found: dict[str, bytes] = {}
    for folder in ("commitlog", "consumequeue", "index"):
        paths: list[Path] = sorted(p for p in (store.directory / folder).rglob("*") if p.is_file())
        for number, path in enumerate(paths):
            name = str(number) if folder == "index" else str(path.relative_to(store.directory))
            found[folder + name] = path.read_bytes()
    return found


@given(st.lists(drafts() | drafts().map(lambda d: d.to_drafts()[0]), min_size=1, max_size=5))
@settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_a_draft_batch_gives_the_same_files_as_single_drafts(
    harness: Any, tmp_path_factory: Any, batch: Sequence[Draft | DraftBatch]
) -> None:
    folder = tmp_path_factory.mktemp("stores")
    one, other = harness.open(folder / "one"), harness.open(folder / "other")
    placed = one.append(batch)
    each = [draft.to_drafts() if isinstance(draft, DraftBatch) else [draft] for draft in batch]
    alone = iter(other.append(list(chain.from_iterable(each))))
    assert files_of(one) == files_of(other)
    for at, group in zip(placed, each, strict=True):
        expected = [next(alone) for _ in group]
        assert at.count == len(group)
        assert at.queue_offset == expected[0].queue_offset
        assert at.size_bytes == sum(result.size_bytes for result in expected)
        offsets = [result.physical_offset for result in expected]
        assert [*(at.physical_offsets or [at.physical_offset])] == offsets
    one.close()
    other.close()


@pytest.mark.parametrize(
    "wrong",
    [([b"x"], [bytes(PROPERTIES_BYTES_MAX + 1)]), ([bytes(16_384)], [b""])],
    ids=["properties", "size"],
)
def test_all_or_nothing(harness: Any, wrong: tuple[list[bytes], list[bytes]]) -> None:
    store = harness.open()
    store.append([harness.draft(0)])
    before = harness.everything(store), store.end_offset
    bodies, texts = [b"fits", *wrong[0]], [b"", *wrong[1]]
    with pytest.raises(UsageError):
        store.append([DraftBatch("t", 0, bodies, texts, [0, 0], [0, 0], [(), ()])])
    assert (harness.everything(store), store.end_offset) == before
    store.append([harness.draft(1)])
    assert list(harness.labels(store).values()) == ["t/0/0", "t/0/1"]
