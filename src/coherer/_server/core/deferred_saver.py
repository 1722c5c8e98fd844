"""Writes the files of `config/` beside the event loop, each in one order.

Rules:

* Contents are taken in the event loop, immediately before they are written, and never while another
  write is under way. So a file never goes back in time, whoever asks for its writing.
* Changes that come while something is written are in the next write, all of them together. Contents
  of thousands of topics take a while to make: the next write waits so long that making them takes a
  fifth of the loop's time at most.
* Whoever acknowledges a change waits for `saved` first.
* What could not be written stays to be written: with the next change, or with `saved`.
* Outside of an event loop, and after `close`, a file is written at once.
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


class _File:
    """What is known of one file."""

    __slots__ = ("before", "error", "take", "written")

    def __init__(self) -> None:
        self.take: Take = bytes
        self.before: Callable[[], object] | None = None
        self.written: bytes | None = None
        self.error: StoreError | None = None


class DeferredSaver:
    """Writes files.

    Args:
        write: replaces a file by its name, durably; called in a thread.

    Attributes:
        changes: grows with every change; who compares it knows whether there is something to wait for.
    """

    def __init__(self, write: Callable[[str, bytes], None]) -> None:
        self._write = write
        self._files: dict[str, _File] = {}
        self._marked: dict[str, None] = {}
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False
        self.changes = 0

    def save(self, name: str, take: Take, before: Callable[[], object] | None = None) -> None:
        """Have a file written.

        Args:
            name: its name.
            take: gives its content, as it is when the file is written.
            before: what has to succeed first; called in the thread.
        """
        file = self._files.setdefault(name, _File())
        file.take, file.before = take, before
        self._mark(name)

    def has(self, name: str, content: bytes) -> None:
        """Say what a file holds: it is not written while that stays so."""
        self._files.setdefault(name, _File()).written = content

    async def saved(self) -> None:
        """Wait until every change so far is on the disk.

        Raises:
            StoreError: a file could not be written; it is written the next time.
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
        """Write everything; from now on files are written at once.

        Raises:
            StoreError: a file could not be written.
        """
        try:
            await self.saved()
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
            self._write_now()
        else:
            self._task = loop.create_task(self._run())

    def _write_now(self) -> None:
        work = self._taken()
        self._note(self._written(work))

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
                self._tell(count)
                if self._marked:
                    await asyncio.sleep(min(REST_FACTOR * spent_s, REST_S_MAX))
        finally:
            self._task = None
            self._tell(self.changes)

    def _taken(self) -> list[tuple[str, _File, bytes]]:
        names, self._marked = list(self._marked), {}
        work: list[tuple[str, _File, bytes]] = []
        for name in names:
            file = self._files[name]
            try:
                content = file.take()
            except Exception as error:  # noqa: BLE001 - the other files are written nevertheless
                _log.exception("The content of %s cannot be made", name, about=name)
                file.error = StoreError(f"The content of {name} cannot be made: {error!r}.")
                continue
            if content == file.written:
                file.error = None
            else:
                work.append((name, file, content))
        return work

    def _written(
        self, work: list[tuple[str, _File, bytes]]
    ) -> list[tuple[str, _File, bytes, Exception | None]]:
        return [(*one, self._failure(*one)) for one in work]

    def _failure(self, name: str, file: _File, content: bytes) -> Exception | None:
        try:
            if file.before is not None:
                file.before()
            self._write(name, content)
        except Exception as error:  # noqa: BLE001 - the other files are written nevertheless
            return error
        return None

    def _note(self, results: list[tuple[str, _File, bytes, Exception | None]]) -> None:
        for name, file, content, error in results:
            if error is None:
                file.written, file.error = content, None
                continue
            _log.error("%s is not written yet, it will be tried again: %s", name, error, about=name)
            if not isinstance(error, StoreError):
                error = StoreError(f"{name} is not written: {error!r}.")
            file.error = error

    def _tell(self, count: int) -> None:
        waiting, self._waiting = self._waiting, []
        for wanted, done in waiting:
            if wanted > count:
                self._waiting.append((wanted, done))
            elif not done.done():
                done.set_result(None)
