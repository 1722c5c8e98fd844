"""Writes the files of `config/` in a thread, in the order of their changes.

Invariants:

* The content of a file is taken in the event loop, immediately before it is written, and never
  while another write is in progress. So a file never returns to older content.
* `write` first makes the messages durable that the content refers to (`Store.save_config`).
* Changes that come during a write are combined into the next one. Serializing thousands of topics
  takes a while, so the next write is delayed such that serializing uses at most a fifth of the
  loop's time.
* Code that acknowledges a change awaits `flush` first.
* A failed write is repeated with the next change, or by `flush`.
* Without a running event loop, and after `close`, files are written synchronously.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from coherer._common.logs import Log
from coherer.errors import StoreError

_log = Log(logging.getLogger(__name__))

REST_FACTOR = 4
REST_S_MAX = 1.0

Take = Callable[[], bytes]

Saved = Callable[[StoreError | None], None]
"""Called after each attempt to write a file: with None if it holds the content that was taken."""


def _ignore(_: StoreError | None) -> None:
    pass


class _File:
    """State of one file."""

    __slots__ = ("error", "saved", "take", "written")

    def __init__(self) -> None:
        self.take: Take = bytes
        self.saved: Saved = _ignore
        self.written: bytes | None = None
        self.error: StoreError | None = None


class DeferredSaver:
    """Writes changed files.

    Args:
        write: replaces the file of a name durably; called in a thread.
        loses_unsaved: whether a change that could not be written is given up, because this process,
            or another one, goes on with what is written.

    Attributes:
        changes: counts changes; compare it to find out whether a call changed a file.
    """

    def __init__(self, write: Callable[[str, bytes], None], *, loses_unsaved: bool = False) -> None:
        self._write = write
        self.loses_unsaved = loses_unsaved
        self._files: dict[str, _File] = {}
        self._marked: dict[str, None] = {}
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False
        self.changes = 0

    def save(self, name: str, take: Take, saved: Saved = _ignore) -> None:
        """Schedule a file to be written.

        Args:
            take: returns the content; called right before the write.
            saved: called after each attempt.
        """
        file = self._files.setdefault(name, _File())
        file.take, file.saved = take, saved
        self._mark(name)

    def mark_saved(self, name: str, content: bytes) -> None:
        """Record the content of a file, so that it is not written again unchanged."""
        self._files.setdefault(name, _File()).written = content

    async def flush(self) -> None:
        """Wait until all earlier changes are on disk.

        Raises:
            StoreError: a file could not be written; the next call tries again.
        """
        for name, file in self._files.items():
            if file.error is not None:
                self._mark(name)
        if self._marked or self._task is not None:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((self.changes, done))
            await done
        for file in self._files.values():
            if file.error is not None:
                raise file.error

    async def close(self) -> None:
        """Write everything; later changes are written synchronously.

        Raises:
            StoreError: a file could not be written.
        """
        try:
            await self.flush()
        finally:
            self._closed = True
            if self._pool is not None:
                self._pool.shutdown()

    # -- inside

    def _mark(self, name: str) -> None:
        self._marked[name] = None
        self.changes += 1
        if self._task is not None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is None or self._closed:
            self._note(self._written(self._taken()))
        else:
            self._task = loop.create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._marked:
                count, begun_s = self.changes, loop.time()
                work = self._taken()
                spent_s = loop.time() - begun_s
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(1, "coherer-files")
                self._note(await loop.run_in_executor(self._pool, self._written, work))
                self._resolve(count)
                if self._marked:
                    await asyncio.sleep(min(REST_FACTOR * spent_s, REST_S_MAX))
        finally:
            self._task = None
            self._resolve(self.changes)

    def _taken(self) -> list[tuple[str, _File, bytes]]:
        names, self._marked = list(self._marked), {}
        work: list[tuple[str, _File, bytes]] = []
        for name in names:
            file = self._files[name]
            try:
                content = file.take()
            except Exception as error:  # noqa: BLE001 - the other files are written nevertheless
                _log.exception("%s could not be serialized", name, about=name)
                file.error = StoreError(f"{name} could not be serialized: {error!r}.")
                file.saved(file.error)
                continue
            if content == file.written:
                file.error = None
                file.saved(None)
            else:
                work.append((name, file, content))
        return work

    def _written(
        self, work: list[tuple[str, _File, bytes]]
    ) -> list[tuple[str, _File, bytes, Exception | None]]:
        return [(*one, self._failure(one[0], one[2])) for one in work]

    def _failure(self, name: str, content: bytes) -> Exception | None:
        try:
            self._write(name, content)
        except Exception as error:  # noqa: BLE001 - the other files are written nevertheless
            return error
        return None

    def _note(self, results: list[tuple[str, _File, bytes, Exception | None]]) -> None:
        for name, file, content, error in results:
            if error is None:
                file.written, file.error = content, None
                file.saved(None)
                continue
            _log.error("%s could not be written and will be retried: %s", name, error, about=name)
            if not isinstance(error, StoreError):
                error = StoreError(f"{name} could not be written: {error!r}.")
            file.error, file.written = error, None  # nobody knows what the disk has
            file.saved(error)

    def _resolve(self, count: int) -> None:
        waiting, self._waiting = self._waiting, []
        for wanted, done in waiting:
            if wanted > count:
                self._waiting.append((wanted, done))
            elif not done.done():
                done.set_result(None)
