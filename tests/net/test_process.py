"""Event loop, open files and memory of the process."""

from __future__ import annotations

import asyncio
import platform

import pytest

from coherer import _net as net
from coherer._net import process


def test_run_uses_uvloop_where_installed() -> None:
    async def name() -> str:
        return type(asyncio.get_running_loop()).__module__

    pytest.importorskip("uvloop")
    assert net.run(name()).startswith("uvloop")


def test_a_server_raises_its_limit_of_open_files() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = min(200, before[0])
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
    try:
        assert process.open_files_max() == few
        assert net.raise_open_files_limit() >= min(before[0], 65_536)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_freed_memory_is_retained() -> None:
    resource = pytest.importorskip("resource")
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("other allocators behave differently")
    process.retain_freed_memory()
    data = b"x" * 300_000

    def build(count: int) -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(count):
            payload = b"".join((data, b"y"))
            frame = b"".join((payload, b"z"))
            del payload, frame
        return int(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

    build(3)
    assert build(100) < 100 * 2 * len(data) / 4096 / 10
