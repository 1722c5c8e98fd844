"""Large buffers do not cost fresh pages each time."""

from __future__ import annotations

import platform

import pytest
from coherer._net.process import keep_freed


def test_freed_memory_is_kept() -> None:
    resource = pytest.importorskip("resource")
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("other allocators have other habits")
    keep_freed()
    data = b"x" * 300_000

    def answers(count: int) -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(count):
            payload = b"".join((data, b"y"))
            frame = b"".join((payload, b"z"))
            del payload, frame
        return int(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

    answers(3)
    assert answers(100) < 100 * 2 * len(data) / 4096 / 10
