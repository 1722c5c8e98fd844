"""Kills and power cuts around the register: no deleted topic comes back."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from coherer._store import Store
from tests.copies import copy_tree

SEEDS = 20
TOPICS = ("a", "b", "c")


class _EndError(Exception):
    """The node ends here."""


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("is_kill", [True, False], ids=["kill", "power"])
def test_it_agrees_with_the_files_whenever_the_node_ends(
    harness: Any, power_files: Callable[[], Any], tmp_path: Path, seed: int, *, is_kill: bool
) -> None:
    chance, directory = random.Random(seed), tmp_path / "0"
    numbers, deleted = itertools.count(), set[str]()
    for life in range(6):
        files = power_files()
        files.adopt(directory)
        left = itertools.count(chance.choice((3, 10, 40, 150)), -1)

        def count(left: itertools.count[int] = left) -> None:
            if next(left) < 0:
                raise _EndError

        files.before = count
        doing = ""
        with suppress(_EndError):
            store: Store = harness.open(directory, files=files)
            assert not deleted.intersection(store.topics())
            for _ in range(60):
                doing = chance.choice(TOPICS)
                if chance.random() < 0.1:
                    store.delete_topic(doing)
                    deleted.add(doing)
                elif chance.random() < 0.2:
                    store.flush_queues()
                else:
                    deleted.discard(doing)
                    for _ in range(chance.choice((1, 30))):
                        store.append([harness.draft(next(numbers), doing, chance.randrange(2))])
        deleted.discard(doing)  # perhaps only a part of it is gone
        files.before = lambda: None
        image = tmp_path / str(life + 1)
        if is_kill:
            copy_tree(directory, image)
        else:
            files.cut(directory, image, chance)
        directory = image
    last = harness.open(directory)
    assert not deleted.intersection(last.topics())
