"""Blocking and asyncio have the same names; what one of them has alone is listed here."""

from __future__ import annotations

import inspect

import pytest

import coherer._client as asynchronous
import coherer._client.rocketmq.admin as admin
import coherer._client.rocketmq.client as async_rocketmq
import coherer.blocking as blocking
import coherer.blocking.rocketmq as rocketmq
from coherer._client.rocketmq.consumer import Consumer as RocketConsumer
from coherer._client.rocketmq.consumer import PullConsumer
from coherer._client.rocketmq.producer import Producer as RocketProducer
from coherer._client.rocketmq.reader import Reader as RocketReader
from coherer._client.rocketmq.transactions import Transaction
from coherer.blocking.rocketmq_admin import RocketAdmin

FOR_FACADES = {"bulk", "full", "post", "post_many", "publishes"}


PAIRS = {
    "Client": (blocking.Client, asynchronous.Client, {"options"}),
    "Producer": (
        blocking.Producer,
        asynchronous.Producer,
        FOR_FACADES,
    ),
    "Consumer": (
        blocking.Consumer,
        asynchronous.Consumer,
        set(),
    ),
    "Reader": (blocking.Reader, asynchronous.Reader, set()),
    "RocketAdmin": (RocketAdmin, admin.Admin, set()),
    "RocketClient": (rocketmq.RocketClient, async_rocketmq.RocketClient, {"options"}),
    "RocketProducer": (rocketmq.RocketProducer, RocketProducer, {*FOR_FACADES, "send_half", "end"}),
    "RocketReader": (
        rocketmq.RocketReader,
        RocketReader,
        {"arrived", "failed", "moved", "nothing", "next_fetch"},
    ),
    "RocketConsumer": (rocketmq.RocketConsumer, RocketConsumer, set()),
    "RocketPullConsumer": (rocketmq.RocketPullConsumer, PullConsumer, set()),
    "RocketTransaction": (rocketmq.RocketTransaction, Transaction, set()),
}
"""Name, both classes, and what only the asyncio one has."""

FIELDS = {
    "Reader": {"end", "exact", "left_out", "partition", "position"},
    "RocketReader": {"end", "exact", "left_out", "partition", "position"},
    "RocketTransaction": {"message", "receipt", "verdict"},
}
"""Plain attributes of the asyncio class."""


def public(kind: type) -> set[str]:
    classes = [one for one in kind.__mro__ if one.__module__.startswith("coherer.")]
    return {name for one in classes for name in vars(one) if not name.startswith("_")}


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_the_same_names(name: str) -> None:
    ours, theirs, alone = PAIRS[name]
    fields = FIELDS.get(name, set())
    assert public(ours) | fields == public(theirs) - alone | fields
    for method in public(ours) - fields:
        one, other = getattr(ours, method), getattr(theirs, method)
        if inspect.isfunction(one):
            names = list(inspect.signature(one).parameters)
            wanted = [name for name in inspect.signature(other).parameters if name != "stop"]
            assert names == wanted, method  # `stop` is for the facade itself


@pytest.mark.parametrize("name", ["connect", "connect_tubemq", "connect_rocketmq"])
def test_connect_takes_the_same(name: str) -> None:
    ours, theirs = getattr(blocking, name), getattr(asynchronous, name)
    assert inspect.signature(ours).parameters == inspect.signature(theirs).parameters
