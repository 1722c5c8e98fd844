"""The tables of metrics in docs/how-to/monitor.md name what a node serves, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from coherer._server.node.metrics import FAMILIES

PAGE = (Path(__file__).parent.parent.parent / "docs/how-to/monitor.md").read_text("utf-8")
NAMES = {family.name for family in FAMILIES}


def table(name: str) -> set[str]:
    """The names in the first column of a table."""
    rows = PAGE.split(f"<!-- table: {name} -->")[1].strip().split("\n\n")[0].splitlines()
    return {word for row in rows for word in re.findall(r"`(rocketmq_\w+)`", row.split("|")[1])}


def test_the_served_metrics_of_rocketmq_are_listed() -> None:
    served = {name for name in NAMES if name.startswith("rocketmq_")}
    assert table("served metrics of RocketMQ") == served


def test_the_absent_metrics_of_rocketmq_are_absent() -> None:
    absent = table("absent metrics of RocketMQ")
    assert len(absent) > 10
    assert absent & NAMES == set()


def test_the_other_metrics_are_listed() -> None:
    others = [name for name in NAMES if name.startswith("coherer_")]
    listed = set(re.findall(r"coherer_\w+", PAGE))
    missing = [name for name in others if name.removesuffix("_limit") not in listed]
    assert missing == []
    assert listed <= NAMES


def test_the_kind_in_the_table_is_that_of_the_metric() -> None:
    kinds = {family.name: family.kind for family in FAMILIES}
    for names, kind in re.findall(r"^\| (`rocketmq[^|]*) \| (\w+) \|", PAGE, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            assert kinds[name] == kind, name
