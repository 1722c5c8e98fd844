"""Nothing is lost when an application is killed, a member leaves, or the broker restarts."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from coherer.errors import CohererError
from coherer.integrations.faststream import RocketMQBroker
from coherer.testing import embedded_node
from tests.integrations.faststream.received import WITHIN_S, Received, until

APP = Path(__file__).with_name("crashing_app.py")
MESSAGES = 200


class App:
    """The application in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.handled: list[int] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.handled.append(int(line))

    async def end(self) -> None:
        """Wait until all that it has written is read."""
        await self.process.wait()
        await self._reading


@asynccontextmanager
async def application(url: str, topic: str) -> AsyncGenerator[App]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(APP), url, topic, stdout=asyncio.subprocess.PIPE
    )
    app = App(process)
    try:
        yield app
    finally:
        if process.returncode is None:
            process.terminate()
        await app.end()


async def test_a_killed_application_loses_nothing(url: str, topic: str) -> None:
    async with RocketMQBroker(url) as broker:
        for number in range(MESSAGES):
            await broker.publish(number, topic)
    async with application(url, topic) as first:
        await until(lambda: len(first.handled) >= MESSAGES // 4)
        first.process.kill()
        await first.end()
    async with application(url, topic) as second:
        await until(lambda: {*first.handled, *second.handled} == set(range(MESSAGES)))
    assert second.process.returncode == 0  # it stopped gracefully


async def test_members_that_come_and_go_lose_nothing(url: str, topic: str) -> None:
    apps: list[App] = []
    async with RocketMQBroker(url) as broker, application(url, topic) as stays:
        apps.append(stays)
        async with application(url, topic) as leaves:
            apps.append(leaves)
            for number in range(MESSAGES):
                await broker.publish(number, topic)
        await until(lambda: len({n for app in apps for n in app.handled}) == MESSAGES)


async def test_a_broker_that_restarts_under_load_loses_nothing(topic: str) -> None:
    got, sent, publishing = Received(), set[int](), asyncio.Event()
    with embedded_node() as node:
        broker = RocketMQBroker(node.rocketmq_url, logger=None)

        @broker.subscriber(topic, group_id=f"{topic}-group", start="earliest", max_workers=8)
        async def handle(number: int) -> None:
            got.add(number)

        async def publish() -> None:
            number = 0
            while not publishing.is_set():
                number += 1
                try:
                    await broker.publish(number, topic)
                except CohererError:
                    continue  # it may or may not be stored
                sent.add(number)

        async with broker:
            await broker.start()
            load = asyncio.create_task(publish())
            await got.wait(100)
            await asyncio.to_thread(node.restart)
            count = len(sent)
            await until(lambda: len(sent) > count + 100)
            publishing.set()
            await load
            async with asyncio.timeout(2 * WITHIN_S):
                while not sent <= set(got):
                    await got.wait(len(got) + 1)
        assert set(Counter(got)) >= sent
