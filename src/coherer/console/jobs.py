"""Background jobs: work that takes longer than a request, with its progress."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal

from coherer._common.logs import Log
from coherer.errors import CohererError

_log = Log(logging.getLogger(__name__))

JOBS_MAX: Final = 50
"""The number of jobs that are kept; then the oldest one that has ended is removed."""

State = Literal["running", "done", "failed", "cancelled"]


class Job:
    """A job.

    Attributes:
        title: its work, as shown to users.
        back: the page on which it was started.
        done: the number of items that are done.
        total: the number of items; None if it is unknown.
        details: further counts, by the names that the page shows.
        waiting: the reason for a pause; None while it works.
        error: the reason of a failure.
        began_s: its start, s since 1970.
    """

    def __init__(self, title: str, back: str) -> None:
        self.id = secrets.token_urlsafe(8)
        self.title = title
        self.back = back
        self.state: State = "running"
        self.done = 0
        self.total: int | None = None
        self.details: Mapping[str, int] = {}
        self.waiting: str | None = None
        self.error: str | None = None
        self.began_s = time.time()
        self.task: asyncio.Task[None] | None = None


class Jobs:
    """Starts jobs, and finds them."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    def start(self, title: str, back: str, work: Callable[[Job], Awaitable[object]]) -> Job:
        """Start a job; `work` writes its progress into the job."""
        job = Job(title, back)
        self._jobs[job.id] = job
        job.task = asyncio.create_task(self._run(job, work), name=title)
        self._forget()
        return job

    def get(self, job_id: str) -> Job | None:
        """Return a job by its id; None if it is unknown or was removed."""
        return self._jobs.get(job_id)

    def running(self) -> list[Job]:
        """Return the jobs that have not ended."""
        return [job for job in self._jobs.values() if job.state == "running"]

    async def cancel(self, job: Job) -> None:
        """Stop a job; completed work is kept."""
        if job.task is not None and not job.task.done():
            job.task.cancel()
            await asyncio.wait([job.task])

    async def close(self) -> None:
        """Stop all jobs."""
        for job in self.running():
            await self.cancel(job)

    async def _run(self, job: Job, work: Callable[[Job], Awaitable[object]]) -> None:
        try:
            await work(job)
        except asyncio.CancelledError:
            job.state = "cancelled"
            raise
        except (CohererError, OSError) as error:
            _log.warning("%s: %s", job.title, error)
            job.state, job.error = "failed", str(error)
        except Exception:  # noqa: BLE001 -- the job's page reports it
            job.state = "failed"
            job.error = "An internal error; the console's log has the details."
            _log.plain.exception("%s failed", job.title)
        else:
            job.state = "done"
        finally:
            job.waiting = None

    def _forget(self) -> None:
        ended = [job for job in self._jobs.values() if job.state != "running"]
        for job in ended[: max(len(self._jobs) - JOBS_MAX, 0)]:
            del self._jobs[job.id]
