"""Files of `config/` are written in a thread, each in the order of its changes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from coherer._rules.common.topics import Topic
from coherer._server.core.core import Core
from coherer._server.core.deferred_saver import DeferredSaver
from coherer._store import Store, StoreOptions
from coherer.errors import StoreError, StoreFullError
from coherer.testing import ManualClock

OPTIONS = StoreOptions(segment_bytes=1 << 16, queue_segment_bytes=2000, index_enabled=False)


class Disk:
    """Records writes; can be blocked, and full."""

    def __init__(self) -> None:
        self.writes: list[tuple[str, bytes]] = []
        self.free = threading.Event()
        self.free.set()
        self.busy = threading.Event()
        self.full = False

    def write(self, name: str, content: bytes) -> None:
        self.busy.set()
        assert self.free.wait(10)
        if self.full:
            raise StoreFullError(f"No room on the disk to write {name}.")
        self.writes.append((name, content))

    def hold(self) -> None:
        self.busy.clear()
        self.free.clear()

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.busy.wait, 10)


def of(state: dict[str, int]) -> Callable[[], bytes]:
    return lambda: str(state["n"]).encode()


async def test_the_loop_runs_while_a_file_is_written() -> None:
    disk, state = Disk(), {"n": 1}
    saver = DeferredSaver(disk.write)
    disk.hold()
    saver.save("a", of(state))
    await disk.reached()
    state["n"] = 2
    saver.save("a", of(state))
    state["n"] = 3
    saver.save("a", of(state))
    waiting = asyncio.create_task(saver.flush())
    with pytest.raises(TimeoutError):  # the second version is not written yet
        await asyncio.wait_for(asyncio.shield(waiting), 0.01)
    disk.free.set()
    await waiting
    assert disk.writes == [("a", b"1"), ("a", b"3")], "in order, the changes between together"
    await saver.flush()
    await saver.close()


async def test_saved_waits_for_changes_before_it_only() -> None:
    disk, state = Disk(), {"n": 1}
    saver = DeferredSaver(disk.write)
    saver.save("a", of(state))
    await saver.flush()
    disk.hold()
    saver.save("b", of(state))
    first = asyncio.create_task(saver.flush())
    await disk.reached()
    saver.save("c", of(state))
    second = asyncio.create_task(saver.flush())
    disk.free.set()
    await first
    await second
    assert [name for name, _ in disk.writes] == ["a", "b", "c"]
    await saver.close()


async def test_unchanged_content_is_not_written_again() -> None:
    disk, state = Disk(), {"n": 1}
    saver = DeferredSaver(disk.write)
    saver.mark_saved("a", b"1")
    saver.save("a", of(state))
    await saver.flush()
    assert disk.writes == []
    state["n"] = 2
    for _ in range(2):
        saver.save("a", of(state))
        await saver.flush()
    assert disk.writes == [("a", b"2")]
    await saver.close()


async def test_a_file_that_could_not_be_written_is_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk, state = Disk(), {"n": 1}
    saver = DeferredSaver(disk.write)
    disk.full = True
    saver.save("a", of(state))
    for _ in range(3):
        with pytest.raises(StoreFullError, match="to write a"):
            await saver.flush()
    assert caplog.text.count("a could not be written") == 1
    disk.full = False
    state["n"] = 2
    await saver.flush()
    assert disk.writes == [("a", b"2")]
    await saver.close()


async def test_a_serialization_error_does_not_affect_other_files() -> None:
    disk = Disk()
    saver = DeferredSaver(disk.write)
    saver.save("a", lambda: str(1 // 0).encode())
    saver.save("b", lambda: b"b")
    with pytest.raises(StoreError, match="a could not be serialized"):
        await saver.flush()
    assert disk.writes == [("b", b"b")]
    with pytest.raises(StoreError, match="a could not be serialized"):
        await saver.close()


async def test_after_the_end_files_are_written_at_once() -> None:
    disk = Disk()
    saver = DeferredSaver(disk.write)
    await saver.close()
    saver.save("a", lambda: b"1")
    assert disk.writes == [("a", b"1")]


async def test_a_file_is_written_again_if_a_failed_write_may_have_changed_it() -> None:
    """Also if its content is what it was before that write."""
    disk, state, fails = {"a": b""}, {"n": 1}, False

    def write(name: str, content: bytes) -> None:
        disk[name] = content
        if fails:  # the new file has its name, and the directory could not be synced
            raise StoreError("The disk failed.")

    saver = DeferredSaver(write)
    saver.save("a", of(state))
    await saver.flush()
    fails, state["n"] = True, 2
    saver.save("a", of(state))
    with pytest.raises(StoreError):
        await saver.flush()
    fails, state["n"] = False, 1
    await saver.flush()
    assert disk == {"a": b"1"}
    await saver.close()


def test_without_a_loop_files_are_written_at_once() -> None:
    disk = Disk()
    DeferredSaver(disk.write).save("a", lambda: b"1")
    assert disk.writes == [("a", b"1")]


async def test_a_topic_made_while_an_older_table_is_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The contents of a table were taken early, and written over newer ones."""
    disk = Disk()
    with Store.open(tmp_path, OPTIONS, now_ms=ManualClock().now_ms) as store:
        core, save = Core(store, ManualClock().now_ms), store.save_config

        def written(name: str, content: bytes) -> None:
            disk.write(name, content)
            save(name, content)

        monkeypatch.setattr(store, "save_config", written)
        disk.full = True
        core.topics.put(Topic(name="first"), now_ms=1)
        with pytest.raises(StoreFullError):
            await core.save_positions()
        disk.full = False
        disk.hold()
        writing = asyncio.create_task(core.save_positions())
        await disk.reached()
        core.topics.put(Topic(name="second"), now_ms=2)
        acknowledged = asyncio.create_task(core.files.flush())
        disk.free.set()
        await asyncio.gather(writing, acknowledged)
        again = Core(store, ManualClock().now_ms)
        assert {topic.name for topic in again.topics} == {"first", "second"}
        await core.close()
        await core.files.close()
