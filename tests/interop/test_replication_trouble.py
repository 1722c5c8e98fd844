"""Replication under load, with kills of both sides; and of brokers that serve accounts only."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import coherer
from coherer import Message, errors
from coherer._client.rocketmq.producing.producer import Producer
from tests.interop.peers.rocket_pair import PAIRS, Pair, directory_of, log_end
from tests.interop.peers.rocket_site import RocketSite, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

WAIT_S = 60.0
SIGNING = [pair for pair in PAIRS if pair[1] == "ours"]
"""Java's slaves do not sign what they ask: any master refuses them its tables."""
IN_FLIGHT = 200
ENOUGH = 500


class Load:
    """Sends by our client, as fast as it may, in a thread of its own."""

    def __init__(self, pair: Pair) -> None:
        self.acknowledged: set[bytes] = set()
        self._pair = pair
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()

    def more(self, count: int = ENOUGH) -> None:
        """Wait until so many more are acknowledged."""
        wanted = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= wanted, WAIT_S)

    def stop(self) -> set[bytes]:
        """Send no more; gives what was acknowledged."""
        self._stopped.set()
        self._thread.join(WAIT_S)
        return self.acknowledged

    async def _run(self) -> None:
        async with (
            coherer.connect(f"rocketmq://{self._pair.namesrv}") as client,
            client.producer(self._pair.topic) as producer,
        ):
            await asyncio.gather(*[self._send(producer, number) for number in range(IN_FLIGHT)])

    async def _send(self, producer: Producer, sender: int) -> None:
        number = 0
        while not self._stopped.is_set():
            number += 1
            body = b"<%d/%d>" % (sender, number) + b"x" * (number * 37 % 900)
            try:
                await producer.send(Message(self._pair.topic, body))
            except errors.CohererError:
                await asyncio.sleep(0.05)
            else:
                self.acknowledged.add(body)


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(rocket: RocketSite, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with Pair(rocket, request.param, tmp_path) as made:
        yield made


@pytest.fixture(params=SIGNING, ids="-".join)
def secured(rocket: RocketSite, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with Pair(rocket, request.param, tmp_path, accounts=True) as made:
        yield made


def log_of(directory: Path) -> dict[int, bytes]:
    """The files of a log, by their first offsets."""
    return {int(file.name): file.read_bytes() for file in (directory / "commitlog").glob("[0-9]*")}


def test_every_acknowledged_message_is_on_both_whoever_was_killed(pair: Pair) -> None:
    slave = pair.follow()
    # A slave that is new begins with the last file: this one has to be there for the first.
    pair.client("producer", group="writers").send(pair.topic, "first")
    wait_until(lambda: pair.slave_has(log_end(pair.master)), WAIT_S)
    load = Load(pair)
    try:
        load.more()
        slave.kill()
        load.more()
        slave.start()
        load.more()
        pair.master.kill()
        pair.master.start()
        pair.master.wait()
        load.more()
    finally:
        acknowledged = load.stop()
    wait_until(lambda: log_end(slave) == log_end(pair.master), WAIT_S)
    theirs, ours = log_of(directory_of(pair.master)), log_of(directory_of(slave))
    for begin, content in ours.items():
        assert content == theirs.get(begin, bytes(len(content))), f"the file at {begin}"
    whole = b"".join(ours[begin] for begin in sorted(ours))
    assert min(ours) == 0
    assert len(acknowledged) >= 4 * ENOUGH
    assert [body for body in acknowledged if body not in whole] == []


def test_between_brokers_that_serve_accounts_only(secured: Pair) -> None:
    slave = secured.follow()
    producer = secured.client("producer", group="writers")
    assert producer.send(secured.topic, "x")["status"] == "SEND_OK"
    reader = secured.client("push", group="readers", topics={secured.topic: "*"})
    reader.wait_for(1, timeout_s=WAIT_S)
    wait_until(lambda: log_end(slave) == log_end(secured.master), WAIT_S)

    def follows() -> bool:
        config = directory_of(slave) / "config"
        try:
            topics = json.loads((config / "topics.json").read_bytes())["topicConfigTable"]
            positions = (config / "consumerOffset.json").read_text()
            groups = (config / "subscriptionGroup.json").read_text()
        except FileNotFoundError:
            return False
        return (
            secured.topic in topics
            and f"{secured.topic}@readers" in positions
            and '"readers"' in groups
        )

    wait_until(follows, WAIT_S)
