"""The programs of docs/how-to/airflow.md run as they are printed, by `dag.test()`."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from coherer.blocking import connect

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries that Airflow starts

PAGE = Path(__file__).parents[3] / "docs/how-to/airflow.md"
TEXT = PAGE.read_text("utf-8")
FLIGHTS, ORDERS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def load(folder: Path, name: str, program: str) -> ModuleType:
    """Save a program in the folder of the DAGs, and import it."""
    file = folder / f"{name}.py"
    file.write_text(program, "utf-8")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def state_of(dag: Any) -> str:
    return str(dag.test().state)


def test_the_new_lines_are_those_of_the_program() -> None:
    (change,) = re.findall(r"```diff\n(.*?)```", TEXT, re.DOTALL)
    added = [line[1:] for line in change.splitlines() if line.startswith(("+", " "))]
    assert added
    assert all(line in FLIGHTS.splitlines() for line in added)


def test_flights(url: str, database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = load(database, "flights", FLIGHTS)
    assert state_of(module.checked.dag) == "success"
    found: dict[str, Any] = {}
    with (
        connect(url) as client,
        client.consumer("look", ["flights_dead", "flights_alerts"], start="earliest") as consumer,
    ):
        while len(found) < 2:
            batch = consumer.receive(60_000)
            assert batch is not None
            found |= {message.topic: message for message in batch}
    assert b'"LAX"' in found["flights_dead"].body
    assert found["flights_dead"].properties["reason"] == "origin LAX"
    event = SimpleNamespace(extra={"payload": {"body": found["flights_alerts"].body.decode()}})
    module.tell.function({module.alerts: [event]})
    assert "HA 51 is 1301 minutes late\n" in capsys.readouterr().out


def test_waiting(database: Path, capfd: pytest.CaptureFixture[str]) -> None:
    module = load(database, "orders", ORDERS)
    assert state_of(module.orders) == "success"
