"""Times on the command line."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest

from coherer.cli.consume_start import parse_position
from coherer.cli.groups import parse_target
from coherer.cli.messages import parse_start


@pytest.mark.parametrize("text", ["0001-01-01", "9999-12-31T23:59:59", "1969-07-20T20:17"])
@pytest.mark.parametrize(
    "parse", [parse_target, parse_position, lambda text: parse_start("--from", text)]
)
def test_a_time_far_away_is_a_moment(parse: Callable[[str], object], text: str) -> None:
    found = parse(text)
    assert isinstance(found, datetime)
    assert found.replace(tzinfo=None) == datetime.fromisoformat(text)
    found.timestamp()
