"""Dead letters of the embedded node; `tests/interop/test_operator.py` uses Java's clusters."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from coherer._administration import dead_letters
from coherer._administration.access import RocketCluster, opened
from coherer._administration.export import Format, export
from coherer.errors import UsageError
from coherer.testing import async_embedded_node
from tests.administration import letters
from tests.administration.dead_letter_scenarios import (
    SCENARIOS,
    dead_letters_are_exported,
    made_dead,
)
from tests.client.rocket_scenario import Scenario, scenario_at


@pytest.mark.parametrize("run", SCENARIOS, ids=lambda run: run.__name__)
async def test_with_the_embedded_node(
    run: Callable[[Scenario], Awaitable[None]], coherer_rocketmq_url: str
) -> None:
    async with scenario_at(coherer_rocketmq_url) as scenario:
        await run(scenario)


async def test_export(coherer_rocketmq_url: str, tmp_path: Path) -> None:
    async with scenario_at(coherer_rocketmq_url) as scenario:
        await dead_letters_are_exported(scenario, tmp_path)


async def test_two_exports_to_one_file_do_not_mix(
    coherer_rocketmq_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "letters.jsonl"
    async with scenario_at(coherer_rocketmq_url) as scenario:
        cluster = await made_dead(scenario, "a", "b", "c")
        some = dead_letters.Filter(topic="nosuch")
        written = await asyncio.gather(
            export(cluster, scenario.group, path), export(cluster, scenario.group, path, where=some)
        )
    assert written == [3, 0]
    assert path.read_bytes().count(b"\n") in (3, 0)
    assert not list(path.parent.glob("*.partial"))


@pytest.mark.skipif(sys.platform == "win32", reason="folders are not synced there")
async def test_an_export_survives_a_power_cut(
    coherer_rocketmq_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dead letters may be purged after it."""
    synced: list[int] = []
    sync = os.fsync

    def note(handle: int) -> None:
        synced.append(os.fstat(handle).st_ino)
        sync(handle)

    async with scenario_at(coherer_rocketmq_url) as scenario:
        cluster = await made_dead(scenario, "a")
        monkeypatch.setattr(os, "fsync", note)
        for name in ("letters.jsonl", "letters.parquet"):
            synced.clear()
            form: Format = "json" if name == "letters.jsonl" else "parquet"
            await export(cluster, scenario.group, tmp_path / name, form=form)
            inodes = [one.stat().st_ino for one in (tmp_path / name, tmp_path)]
            assert [one for one in synced if one in inodes] == inodes


async def test_a_letter_of_an_earlier_address_is_found_behind_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with async_embedded_node(tmp_path) as node, opened(node.rocketmq_url) as cluster:
        assert isinstance(cluster, RocketCluster)
        await letters.made_dead(cluster, [b"a", b"b", b"c"])
        old = [one async for one in dead_letters.scan(cluster, letters.GROUP)]
    monkeypatch.setattr(dead_letters, "SCAN_MAX", 1)
    async with async_embedded_node(tmp_path) as node, opened(node.rocketmq_url) as cluster:
        for one in old:
            assert await dead_letters.get(cluster, letters.GROUP, one.id) == one


async def test_tubemq_has_none(coherer_url: str) -> None:
    async with opened(coherer_url) as cluster:
        with pytest.raises(UsageError, match=r"TubeMQ has no dead letters.*rocketmq://"):
            await dead_letters.queues(cluster)
