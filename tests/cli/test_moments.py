"""Times and offsets on the command line."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest

from coherer.cli.consume_start import parse_partitions, parse_position
from coherer.cli.groups import parse_target
from coherer.cli.jobs import edge
from coherer.cli.messages import parse_place, parse_start
from coherer.errors import UsageError


@pytest.mark.parametrize("text", ["0001-01-01", "9999-12-31T23:59:59", "1969-07-20T20:17"])
@pytest.mark.parametrize(
    "parse", [parse_target, parse_position, lambda text: parse_start("--from", text)]
)
def test_a_time_far_away_is_a_moment(parse: Callable[[str], object], text: str) -> None:
    found = parse(text)
    assert isinstance(found, datetime)
    assert found.replace(tzinfo=None) == datetime.fromisoformat(text)
    found.timestamp()


@pytest.mark.parametrize("digits", [19, 5_000])
def test_no_offset_is_that_long(digits: int) -> None:
    """A broker could not be asked for it, and Python reads no number of 5,000 digits."""
    number = "9" * digits
    assert parse_target(number) is None
    for parse, text in (
        (parse_position, number),
        (lambda text: parse_start("--from", text), number),
        (lambda text: edge(text, "--from"), number),
        (lambda text: parse_partitions([text]), f"broker-a:{number}"),
        (parse_place, f"0:{number}"),
    ):
        with pytest.raises(UsageError):
            parse(text)
