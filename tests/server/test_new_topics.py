"""The first messages of a new topic are stored once the topic is saved.

After a power cut a topic that no file names would begin at offset 0 again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coherer._rules.common.origins import Origin
from coherer._rules.common.topics import Topic
from coherer._server.core.core import TOPICS_FILE, Core
from coherer._store import Draft, Store, StoreOptions
from coherer.errors import CohererError, StoreFullError
from coherer.testing import ManualClock
from tests.server.test_deferred_saver import Disk

OPTIONS = StoreOptions(segment_bytes=1 << 16, queue_segment_bytes=2000, index_enabled=False)


class Slow:
    """A core whose files of `config/` go through a disk that the test holds."""

    def __init__(self, directory: Path, options: StoreOptions = OPTIONS) -> None:
        clock = ManualClock()
        self.store = Store.open(directory, options, now_ms=clock.now_ms)
        self.core = Core(self.store, clock.now_ms)
        self.core.topics.put(Topic(name="old", read_queues=1, write_queues=1), 0)
        self.disk = Disk()
        self.stored: list[str] = []
        self.refused: list[CohererError] = []

    async def hold(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """From now on the disk is busy, and the topic `new` waits for it."""
        await self.core.files.flush()
        monkeypatch.setattr(self.store, "save_config", self.disk.write)
        self.disk.hold()
        self.core.topics.put(Topic(name="new", read_queues=1, write_queues=1), 0)
        await self.disk.reached()

    def send(self, *topics: str) -> None:
        """Send a message to each of these topics, in one batch."""

        def done(results: object, _: int) -> None:
            if isinstance(results, CohererError):
                self.refused.append(results)
            else:
                self.stored.append(",".join(topics))

        drafts = [Draft(topic, 0, b"x", b"") for topic in topics]
        self.core.appender.submit(drafts, done, origin=Origin.ROCKETMQ_CLIENT)

    async def turn(self) -> None:
        """Let the loop store what was submitted."""
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.fixture
async def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Slow]:
    made = Slow(tmp_path)
    await made.hold(monkeypatch)
    yield made
    made.disk.free.set()
    await made.core.close()
    await made.core.files.close()
    made.store.close()


async def test_messages_of_a_new_topic_wait_until_it_is_saved(slow: Slow) -> None:
    slow.send("new")
    slow.send("old")
    await slow.turn()
    assert slow.stored == ["old"]
    assert slow.core.appender.waiting == 1
    assert slow.store.queue_range("new", 0) == (0, 0)
    slow.disk.free.set()
    await slow.core.appender.close()
    assert slow.stored == ["old", "new"]
    assert TOPICS_FILE in dict(slow.disk.writes)


async def test_messages_of_one_topic_keep_their_order(slow: Slow) -> None:
    slow.send("new", "old")
    await slow.turn()
    slow.send("old")
    await slow.turn()
    assert slow.stored == []
    slow.disk.free.set()
    await slow.core.appender.close()
    assert slow.stored == ["new,old", "old"]


async def test_they_are_refused_if_the_topic_cannot_be_saved(slow: Slow) -> None:
    slow.send("new")
    await slow.turn()
    slow.disk.full = True
    slow.disk.free.set()
    await slow.core.appender.close()
    assert [type(error) for error in slow.refused] == [StoreFullError]
    slow.disk.full = False
    slow.send("new")
    await slow.core.appender.close()
    assert slow.stored == ["new"]


async def test_with_sync_flush_nothing_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers see durable messages only, and the log names their topics."""
    made = Slow(tmp_path, StoreOptions(segment_bytes=1 << 16, flush="sync"))
    await made.hold(monkeypatch)
    made.send("new")
    await made.core.appender.close()
    assert made.stored == ["new"]
    made.disk.free.set()
    await made.core.close()
    await made.core.files.close()
    made.store.close()
