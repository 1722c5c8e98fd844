"""What somebody reads who opens the files of the brokers, instead of asking these."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from coherer.arrow import scan
from coherer.errors import CohererError, RefusedError
from tests.simulation.history import Place
from tests.simulation.machines import Machine
from tests.simulation.senders import FILLED, TOPICS

if TYPE_CHECKING:  # a run looks at them, with itself
    from tests.simulation.workload import Run

COLUMNS: Final = ("partition", "offset", "value")
NO_BROKER: Final = frozenset({"master", "master-a", "master-b"})


def look(run: Run, what: str) -> None:
    """Note what the files of all brokers hold."""
    for machine in run.cluster.machines:
        if machine.name not in NO_BROKER and not machine.is_slave:
            with run.noting("files"):
                _look(run, machine, what)
    run.note("files", f"{what} read")


def _look(run: Run, machine: Machine, what: str) -> None:
    options = machine.node.options
    broker = options.broker_name if run.plan.protocol == "rocketmq" else options.broker_id
    mode = "DROP" if run.plan.rots else "FAILFAST"
    for topic in TOPICS:
        try:
            for place, body in _rows(machine, topic, f"{topic}@{broker}", mode):
                run.note("files", what, body, place=place)
        except RefusedError:  # nobody has created it, or it was deleted
            continue
        except CohererError as error:
            run.note("files", "error", note=f"{topic}: {error}")


def _rows(machine: Machine, topic: str, queue: str, mode: str) -> Iterator[tuple[Place, str]]:
    options = {"brokerName": machine.node.options.broker_name, "mode": mode}
    for batch in scan(f"file:{machine.directory}", topic, columns=COLUMNS, options=options):
        for row in batch.to_pylist():
            text = row["value"].decode().partition(FILLED)[0]
            yield Place(f"{queue}.{row['partition']}", row["offset"]), text
