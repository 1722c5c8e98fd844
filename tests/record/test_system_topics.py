"""Delay levels in the syntax of Java's configuration."""

from __future__ import annotations

import pytest

from coherer._record.system_topics import DELAY_LEVELS_MS, parse_levels
from coherer.errors import UsageError


def test_the_eighteen_levels() -> None:
    assert len(DELAY_LEVELS_MS) == 18
    assert DELAY_LEVELS_MS[:5] == (1_000, 5_000, 10_000, 30_000, 60_000)
    assert DELAY_LEVELS_MS[-2:] == (3_600_000, 7_200_000)


def test_days_and_spaces() -> None:
    assert parse_levels(" 1d  2s ") == (86_400_000, 2_000)


@pytest.mark.parametrize("text", ["", "1", "s", "1x", "-1s", "1s5s", "\u0661s"])
def test_invalid_delay_levels_are_rejected(text: str) -> None:
    with pytest.raises(UsageError):
        parse_levels(text)
