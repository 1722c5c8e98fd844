"""`verify` knows every file of `config/` that a start reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from coherer._server.node.verifying import CONFIG_FILES, RESTORED_BY_CLIENTS, verify
from coherer._store.verify import LOST
from coherer.errors import DamagedStoreError
from coherer.testing import embedded_node
from tests.copies import copy_tree
from tests.store.test_order_of_durability import SAVED_BY_THE_STORE, WRITTEN_OTHERWISE

LINES = frozenset({"broker.properties", "namesrv.properties"})
"""Java reads each line for itself, and passes over those that are none: nothing is invalid."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("verified") / "node"
    with embedded_node(directory) as node:
        node.create_topic("orders")
    return directory


@pytest.mark.parametrize("name", sorted({*SAVED_BY_THE_STORE, *WRITTEN_OTHERWISE, *CONFIG_FILES}))
def test_what_keeps_a_node_from_starting_is_found(
    directory: Path, tmp_path: Path, name: str
) -> None:
    copy = tmp_path / "copy"
    copy_tree(directory, copy)
    (copy / "config" / f"{name}.bak").unlink(missing_ok=True)
    (copy / "config" / name).write_bytes(b"\0{")
    found = [problem.outcome for problem in verify(copy).problems if problem.where == name]
    assert bool(found) == (name in CONFIG_FILES and name not in LINES)
    if LOST in found:
        assert name not in RESTORED_BY_CLIENTS
        with pytest.raises(DamagedStoreError, match=name), embedded_node(copy):
            pass
    else:
        with embedded_node(copy):
            pass
