"""The demo's picture: a PNG, whatever the answers."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from coherer.cli.demo.chart import draw, short_name
from coherer.cli.demo.dataset import Answer, Row

CARRIERS: list[Row] = [("F9", "Frontier Airlines Inc.", 682, 20.2, 29.6), ("X", "", 3, -4.0, 0.0)]
HOURS: list[Row] = [
    ("EWR", 19, 5748, 31.1, 43.2),
    ("EWR", 5, 90, 1.0, 2.0),
    ("XXX", 7, 8, 1.0, 0.0),
]
RAIN: list[Row] = [("dry", 305907, 11.4, 21.0), ("over 4 mm", 2267, 41.3, 48.9)]


@pytest.mark.parametrize(
    ("carriers", "hours", "rain"),
    [(CARRIERS, HOURS, RAIN), ([], [], []), (CARRIERS[1:], HOURS[2:], RAIN[1:])],
)
def test_it_is_drawn(
    tmp_path: Path, carriers: list[Row], hours: list[Row], rain: list[Row]
) -> None:
    answers = [Answer("a", (), carriers), Answer("b", (), hours), Answer("c", (), rain)]
    draw(answers, 1000, tmp_path / "chart.png")
    data = (tmp_path / "chart.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (2025, 1260)
    assert len(data) > 20_000


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("Delta Air Lines Inc.", "Delta"),
        ("United Air Lines Inc.", "United"),
        ("Southwest Airlines Co.", "Southwest"),
        ("AirTran Airways Corporation", "AirTran"),
        ("US Airways Inc.", "US Airways"),
        ("Envoy Air", "Envoy Air"),
    ],
)
def test_carriers_have_short_names(name: str, short: str) -> None:
    assert short_name(name) == short
