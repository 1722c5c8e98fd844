"""A group over a lossy network, with a master and a broker that restart."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.server.master_harness import Broker, Consumer, MasterHarness

PARTITIONS = 6
INDEX = st.integers(0, 7)


class LossyCluster(RuleBasedStateMachine):
    """No two consumers hold one partition; without further losses, the loads are even.

    Nobody is silent for longer than its timeout here: who is, has to ask the broker what it still
    holds, and brokers are not part of this.
    """

    def __init__(self) -> None:
        super().__init__()
        self.harness = MasterHarness(consumer_timeout_ms=10_000_000, return_ms=10_000_000)
        self.broker = Broker(self.harness, 1)
        self.broker.start()
        self.harness.topic("flights", PARTITIONS)
        self.broker.sync()
        self.there: dict[str, Consumer] = {}
        self.names = (f"c{number}" for number in itertools.count())
        self.join()

    def consumer(self, index: int) -> Consumer:
        return self.there[sorted(self.there)[index % len(self.there)]]

    @rule()
    def join(self) -> None:
        name = next(self.names)
        self.there[name] = Consumer(self.harness, name)
        assert self.there[name].register().success

    @precondition(lambda self: len(self.there) > 2)
    @rule(index=INDEX)
    def leave(self, index: int) -> None:
        assert self.there.pop(self.consumer(index).name).close().success

    @rule(index=INDEX, lost=st.sampled_from(["nothing", "request", "answer"]))
    def heartbeat(self, index: int, lost: str) -> None:
        consumer = self.consumer(index)
        if lost == "request":
            consumer.result = None
            return
        held = set(consumer.held)
        answer = consumer.heartbeat()
        if lost == "answer":
            consumer.held, consumer.result = held, None
        elif not answer.success:
            consumer.result = None
            assert consumer.register().success

    @rule()
    def round(self) -> None:
        for index in range(len(self.there)):
            self.heartbeat(index, "nothing")

    @rule(ms=st.sampled_from([100, 1_000, 31_000]))
    def wait(self, ms: int) -> None:
        self.harness.wait(ms)

    @rule()
    def restart_master(self) -> None:
        self.harness.wait(1)
        self.harness.restart()
        assert self.broker.register(online=True).success
        self.broker.sync()

    @rule()
    def restart_broker(self) -> None:
        for consumer in self.there.values():
            consumer.held.clear()
        self.broker = Broker(self.harness, 1)
        self.broker.start()
        self.broker.sync()

    @invariant()
    def nobody_holds_what_another_holds(self) -> None:
        held = [n for consumer in self.there.values() for n in consumer.numbers]
        assert len(held) == len(set(held))

    def teardown(self) -> None:
        for turn in range(14):
            self.round()
            if not self.broker.heartbeat().success:
                self.broker.register(online=True)
            self.harness.wait(31_000 if turn % 2 else 100)
        loads = [len(consumer.numbers) for consumer in self.there.values()]
        assert sum(loads) == PARTITIONS
        assert max(loads) - min(loads) <= 1


LossyCluster.TestCase.settings = settings(stateful_step_count=40, deadline=None)
TestLossyCluster = LossyCluster.TestCase
