"""What Spark's daemon of Python workers changes for them."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyspark")

FAULTS = """
import resource, sys
from coherer.spark.daemon import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        buffers = [b"x" * (3 << 20) for _ in range(4)]
        del buffers
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "keep":
    keep_freed_memory()
print(faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is on Linux")
def test_workers_do_not_return_freed_memory_to_the_kernel() -> None:
    def faults(how: str) -> int:
        command = [sys.executable, "-c", FAULTS, how]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert faults("keep") < faults("return") / 2
