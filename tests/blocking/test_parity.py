"""Blocking and asyncio have the same names; what one of them has alone is listed here."""

from __future__ import annotations

import inspect

import pytest

import coherer.blocking as blocking
import coherer.client as asynchronous

ALONE = {
    "Client": {"options"},
    "Producer": {"bulk", "changed", "elsewhere", "full", "post", "post_many", "publishes"},
    "Consumer": {"instructed", "membership_ended"},
    "Reader": set(),
}


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


@pytest.mark.parametrize("name", sorted(ALONE))
def test_the_same_names(name: str) -> None:
    ours, theirs = getattr(blocking, name), getattr(asynchronous, name)
    fields = {"end", "exact", "partition", "position"} if name == "Reader" else set()
    assert public(ours) | fields == public(theirs) - ALONE[name] | fields
    for method in public(ours) - fields:
        one, other = getattr(ours, method), getattr(theirs, method)
        if inspect.isfunction(one):
            names = list(inspect.signature(one).parameters)
            assert names == list(inspect.signature(other).parameters), method


def test_connect_takes_the_same() -> None:
    ours, theirs = blocking.connect, asynchronous.connect
    assert inspect.signature(ours).parameters == inspect.signature(theirs).parameters
