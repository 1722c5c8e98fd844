"""A client that was made before a fork refuses to work in the child, whoever forked."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHILD = """
import ctypes, os, sys
import coherer, coherer.blocking
from coherer.errors import ForkedError

client = coherer.blocking.{protocol}.connect("{protocol}://127.0.0.1:1")
# The GIL is kept: no thread of the parent exists in the child that could hold it.
pid = {fork}
if pid == 0:
    try:
        client.producer()
    except ForkedError:
        os._exit(0)
    os._exit(3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""

FORKS = {
    "python": "os.fork()",
    # uWSGI forks in C, and does not call Python's hooks unless it is told to.
    "c": "ctypes.PyDLL(None).fork()",
}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
@pytest.mark.parametrize("fork", FORKS)
def test_a_child_is_refused(protocol: str, fork: str) -> None:
    code = CHILD.format(protocol=protocol, fork=FORKS[fork])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
