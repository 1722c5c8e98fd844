"""Fixtures of the tests of commands."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

Catches = Callable[[int, signal.Signals], bool]


@pytest.fixture
def catches() -> Catches:
    """Whether a process has a handler; commands remove theirs at the first signal."""

    def ask(pid: int, number: signal.Signals) -> bool:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        found = re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)
        assert found is not None
        return bool(int(found[1], 16) >> (number - 1) & 1)

    return ask
