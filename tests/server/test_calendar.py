"""The same short life of a node at many dates, in many time zones: nothing depends on the day.

Each life begins shortly before a moment at which something in the calendar changes, and lasts until
after it. All clocks stand still except where the test advances them, so all times are known.

The table has moments at which programs have failed. A few more are drawn in each run; a test that
fails prints its moment, which can be added to the table.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec
import pytest

import coherer
import coherer._client.rocketmq.client
import coherer._client.tubemq.client
from coherer._client.rocketmq.client import Client as RocketClient
from coherer._client.tubemq.client import Client as TubeClient
from coherer._server.node.node import Node
from coherer._store.backup import back_up
from coherer._store.restore import restore, verify_backup
from coherer.rocketmq import Message, StoredMessage, Verdict
from coherer.testing import ManualClock
from tests.server.node_harness import options
from tests.waiting import until

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
STEP_MS = 1_237
SEGMENT_BYTES = 1 << 16

ZONES = (
    "UTC",
    "America/New_York",
    "America/Havana",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Pacific/Kiritimati",
    "Pacific/Pago_Pago",
)

MOMENTS = [
    "2026-02-01T00:00 Europe/Berlin",
    "2026-03-01T00:00 Europe/Berlin",
    "2026-04-01T00:00 Europe/Berlin",
    "2026-05-01T00:00 Europe/Berlin",
    "2026-11-25T20:31:23.648 UTC",  # 2 ** 31 ms after the beginning of the month
    "2026-12-31T12:00 Asia/Kolkata",
    "2027-01-01T00:00 Pacific/Kiritimati",
    "2027-01-01T00:00 Pacific/Pago_Pago",
    "2028-02-29T00:00 Asia/Kolkata",
    "2028-03-01T00:00 America/New_York",
    "2100-03-01T00:00 UTC",  # not a leap year
    "2027-03-14T07:00Z America/New_York",  # an hour does not exist
    "2026-11-01T05:00Z America/New_York",  # an hour begins that happens twice
    "2026-11-01T06:00Z America/New_York",
    "2027-04-03T15:00Z Australia/Lord_Howe",  # half an hour happens twice
    "2026-11-01T04:00Z America/Havana",  # the first hour of the month happens twice
    "2026-11-01T05:00Z America/Havana",
    "2026-11-01T06:00Z America/Havana",
    "2017-10-01T04:00Z America/Asuncion",  # the month begins at one o'clock
    "2001-09-09T01:46:40 UTC",  # 10 ** 9 s
    "2038-01-19T03:14:08.002 UTC",  # 2 ** 31 s, and products of floats that are not whole
    "2038-02-28T23:59:59.999 America/New_York",
    "2106-02-07T06:28:16 UTC",  # 2 ** 32 s
]
DRAWN = ["drawn 1", "drawn 2", "drawn 3"]


def draw(count: int) -> str:
    """A moment from 1971 to 2129: with the same seed of `random`, the count-th one."""
    for _ in range(count):
        moment = EPOCH + timedelta(days=random.uniform(365, 58_000))
        zone = random.choice(ZONES)
    return f"{moment.isoformat()} {zone}"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock of the whole process."""
    clock, clock_gettime_ns = ManualClock(), time.clock_gettime_ns
    began_ms = time.time_ns() // 10**6
    monkeypatch.setattr("coherer._common.machine.wall_ns", lambda: clock.wall_ms() * 10**6)
    monkeypatch.setattr(time, "time", lambda: clock.wall_ms() / 1000)
    monkeypatch.setattr(
        time,
        "clock_gettime_ns",
        lambda kind: clock_gettime_ns(kind) + (clock.now_ms() - began_ms) * 10**6,
    )
    return clock


@pytest.fixture
def moment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[datetime]:
    """A moment in its time zone, which is the local one during the test."""
    text, zone = request.param.split()
    if text == "drawn":
        text, zone = draw(int(zone)).split()
    print(text, zone)
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    found = datetime.fromisoformat(text)
    yield found if found.tzinfo else found.replace(tzinfo=ZoneInfo(zone))
    monkeypatch.undo()
    time.tzset()


class Life:
    """A node, and clients of both protocols, in a process whose clocks stand still."""

    def __init__(self, clock: ManualClock, stack: AsyncExitStack) -> None:
        self.clock = clock
        self._stack = stack

    async def begin(self, directory: Path) -> None:
        """Start the node and the clients."""
        small = options(directory, segment_bytes=SEGMENT_BYTES, transaction_interval_ms=1_000)
        node = Node(small, now_ms=self.clock.now_ms, wall_ms=self.clock.wall_ms)
        self.node = await self._stack.enter_async_context(node)
        self.node.create_topic("orders", 1)
        tube = await self._stack.enter_async_context(coherer.connect(self.node.url))
        rocket = await self._stack.enter_async_context(coherer.connect(self.node.rocketmq_url))
        assert isinstance(tube, TubeClient)
        assert isinstance(rocket, RocketClient)
        self.tube, self.rocket = tube, rocket

    @property
    def now(self) -> datetime:
        return time_at(self.clock.wall_ms())


@asynccontextmanager
async def living(directory: Path, clock: ManualClock) -> AsyncIterator[Life]:
    async with asyncio.timeout(120), AsyncExitStack() as stack:
        life = Life(clock, stack)
        await life.begin(directory)
        yield life


class Sent(msgspec.Struct):
    """What a life has sent; each message has a time of its own.

    Args:
        ids: the unique ids, by body.
        times: when the messages were sent, by body.
    """

    ids: dict[str, str] = {}
    times: dict[str, datetime] = {}

    def order(self, life: Life, body: str) -> Message:
        """Make a message that is sent some seconds after the one before."""
        life.clock.advance(STEP_MS)
        self.times[body] = life.now
        keys = () if body == "tube" else (body,)
        return Message("orders", body.encode(), keys=keys, time=life.now)


async def send_all(life: Life) -> Sent:
    """Send messages in every way that has to do with times."""
    sent = Sent()
    async with life.tube.producer("orders") as tube:
        await tube.send(sent.order(life, "tube"))
    async with life.rocket.producer("orders", group="banks", check=commit) as rocket:
        for body, given in (
            ("plain", {}),
            ("level", {"delay_level": 3}),
            ("timed", {"deliver_at": life.now + timedelta(seconds=30)}),
            ("local", {"deliver_at": (life.now + timedelta(seconds=30)).astimezone()}),
        ):
            receipt = await rocket.send(sent.order(life, body), **given)
            sent.ids[body] = receipt.unique_id
        batch = [sent.order(life, body) for body in ("first", "second")]
        sent.times["first"] = life.now  # a batch is sent at once
        [receipt] = await rocket.send_batch(batch)
        sent.ids.update(zip(("first", "second"), receipt.unique_id.split(","), strict=True))
        async with rocket.transaction(sent.order(life, "paid")) as transaction:
            sent.ids["paid"] = transaction.id
        async with rocket.transaction(sent.order(life, "checked")) as transaction:
            sent.ids["checked"] = transaction.id
            await transaction.leave()
        await receive_all(life, sent)
    return sent


async def receive_all(life: Life, sent: Sent) -> None:
    """Receive each message once over each protocol, one of them after a retry."""
    found: list[str] = []
    at_once = {"tube", "plain", "first", "second", "paid"}
    async with life.rocket.consumer(
        "readers", "orders", start="earliest", batch_messages=1, rebalance_ms=50
    ) as consumer:
        while set(found) != sent.times.keys():
            batch = await consumer.receive()
            assert batch is not None
            for message in batch:
                body = message.body.decode()
                if body == "plain" and not message.attempt:
                    await message.retry(later=3)
                    at_once.discard(body)
                else:
                    found.append(body)
                    message.ack()
                if at_once == set(found):
                    life.clock.advance(40_000)  # delays and the retry are over, a check is due
        await consumer.commit()
    assert sorted(found) == sorted(sent.times)
    times: dict[str, datetime | None] = {}
    async with life.tube.consumer("others", "orders", start="earliest") as tube_consumer:
        while times.keys() != sent.times.keys():
            received = await tube_consumer.receive()
            assert received is not None
            times |= {message.body.decode(): message.time for message in received}
    assert times["tube"] == sent.times["tube"].replace(second=0, microsecond=0, tzinfo=None)


async def find_all(life: Life, sent: Sent) -> None:
    """Find messages by unique id, by key, and by the time when they were stored."""
    admin = life.rocket.admin()
    found: list[StoredMessage] = []
    for body, unique_id in sent.ids.items():
        [one] = await admin.messages.all_by_unique_id("orders", unique_id)
        assert one.body == body.encode()
        assert one.born_ms == ms_of(sent.times[body])
        assert java_time(unique_id, life.now) <= time_at(one.born_ms), "Java's tools find it"
        found.append(one)
    found.sort(key=lambda one: one.offset or 0)
    for one in found:
        [key] = one.keys
        stored = time_at(one.stored_ms)
        place = next(each.offset for each in found if each.stored_ms == one.stored_ms)
        for moment in (stored, datetime.fromtimestamp(stored.timestamp())):  # noqa: DTZ006
            assert await admin.messages.find("orders", key, begin=moment, end=moment) == [one]
            for client in (life.rocket, life.tube):
                [since] = (await client.offsets_since("orders", moment)).values()
                assert since == place
        assert await admin.messages.find("orders", key, end=stored - SECOND) == []
        assert await admin.messages.find("orders", key, begin=stored + SECOND) == []


async def expire_all(life: Life) -> None:
    """Fill a file of the log; the messages expire when they are old enough."""
    core = life.node.core
    assert core is not None
    async with life.tube.producer("orders") as producer:
        for _ in range(3):
            await producer.send(coherer.Message("orders", bytes(SEGMENT_BYTES // 2)))
    [(first, end)] = (await life.tube.offsets("orders")).values()
    core.clean()
    assert [*(await life.tube.offsets("orders")).values()] == [(first, end)]
    life.clock.advance(73 * 3_600_000)

    def has_expired() -> bool:
        core.clean()  # what waits in old files is stored again first
        return core.store.queue_range("orders", 0) == (end - 1, end)  # the last file stays

    await until(has_expired)


def time_at(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def ms_of(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(milliseconds=1)


def java_time(unique_id: str, now: datetime) -> datetime:
    """The time in a unique id, as Java's tools read it (docs/protocol/rocketmq.md, section 5.8)."""
    since = timedelta(milliseconds=int(unique_id[20:28], 16))
    month = _begin_of_month(now.astimezone())
    if month + since >= now:
        month = _begin_of_month(month.astimezone() - timedelta(days=1))
    return month + since


def _begin_of_month(day: datetime) -> datetime:
    first = day.replace(day=1, hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    # Of a time that happens twice, Java takes the second one.
    return max(first.replace(fold=fold).astimezone(UTC) for fold in (0, 1))


async def commit(message: StoredMessage) -> Verdict:
    return Verdict.COMMIT


@pytest.mark.parametrize("moment", MOMENTS + DRAWN, indirect=True)
async def test_a_life(tmp_path: Path, clock: ManualClock, moment: datetime) -> None:
    clock.set(ms_of(moment) - 5 * STEP_MS)
    async with living(tmp_path / "node", clock) as life:
        sent = await send_all(life)
        await find_all(life, sent)
        back_up(tmp_path / "node", tmp_path / "backup", wall_ns=time.time_ns)
    assert verify_backup(tmp_path / "backup").problems == []
    restore(tmp_path / "backup", tmp_path / "again")
    clock.advance(3_600_000)
    async with living(tmp_path / "again", clock) as life:
        await find_all(life, sent)
        await expire_all(life)
