"""{our, Java} client x {our, Java} master x {our, Java} broker: what clients do all day."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from datetime import datetime

from coherer import Message
from tests.interop.peers.clients import Package, Producer, Puller, closing
from tests.interop.peers.runs import At, scenario
from tests.interop.peers.site import CONSUMER_TIMEOUT_MS, PAIRS, RESTARTS, SEVERAL

SIZES = [1, 100, 1024, 8192]
BIG = 200_000
EMPTY_MS = 1_500
WAIT_MS = 60_000
DONE_S = 300.0


async def drain(puller: Puller, count: int) -> list[Package]:
    """Gets and confirms until `count` messages were there."""
    packages: list[Package] = []
    async with asyncio.timeout(DONE_S):
        while sum(len(package.messages) for package in packages) < count:
            package = await puller.get(WAIT_MS)
            assert package is not None, f"{count} wanted, got {[len(p.messages) for p in packages]}"
            await puller.confirm(package)
            packages.append(package)
    return packages


async def collect(
    packages: AsyncIterator[Package], into: Counter[bytes], seen: dict[str, int] | None = None
) -> None:
    """Counts what a follower prints, for ever."""
    async for package in packages:
        into.update(package.bodies)
        if seen is not None:
            seen[package.partition] = seen.get(package.partition, 0) + len(package.messages)


async def until(condition: object, what: str, timeout_s: float = DONE_S) -> None:
    """Waits for a condition that only polling tells."""
    assert callable(condition)
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    while True:
        outcome = condition()
        if asyncio.iscoroutine(outcome):
            outcome = await outcome
        if outcome:
            return
        assert loop.time() < end, f"not in {timeout_s:.0f} s: {what}"
        await asyncio.sleep(0.2)


def numbered(topic: str, numbers: Iterable[int]) -> list[Message]:
    return [Message(topic, b"n%06d" % number) for number in numbers]


@scenario(PAIRS)
async def test_a_message_arrives_as_it_was_sent(at: At) -> None:
    """Body, tag, time, properties and id; offsets that grow; keys that name the broker."""
    messages = [
        Message(at.topic, b"plain"),
        Message(at.topic, bytes(range(256)), tag="t1"),
        Message(at.topic, b"x", tag="t2", time=datetime(2024, 1, 2, 3, 4)),  # noqa: DTZ001
        Message(at.topic, b"\0" * 9000, tag="t3", properties={"k1": "v1", "k2": "\u00fc\u4e2d"}),
        Message(at.topic, b"only properties", properties={"k": "v"}),
    ]
    producer = await at.clients.producer(at.master, [at.topic])
    async with closing(producer):
        sent = [await producer.send(message) for message in messages]
    number = at.deployed.brokers[0].broker_id
    for one in sent:
        broker, topic, partition = one.partition.split(":")
        assert (broker, topic) == (str(number), at.topic)
        assert int(partition) in range(4)
        assert one.offset >= 0
    puller = await at.clients.puller(at.master, at.group(), {at.topic: []})
    async with closing(puller):
        packages = await drain(puller, len(messages))
    got = {message.id: message for package in packages for message in package.messages}
    assert len(got) == len(messages)
    for one, message in zip(sent, messages, strict=True):
        found = got[one.id]
        assert (found.body, found.tag, found.time) == (message.body, message.tag, message.time)
        assert dict(found.properties) == dict(message.properties)
        assert f"{found.broker}:{found.topic}:{found.partition}" == one.partition


@scenario(PAIRS)
async def test_many_in_flight_of_all_sizes(at: At) -> None:
    """Every one is acknowledged once and delivered once, in the order of its partition."""
    bodies = [b"%06d" % n + b"." * SIZES[n % len(SIZES)] for n in range(2000)]
    big = [b"%06d" % n + b"." * BIG for n in range(2000, 2010)]
    producer = await at.clients.producer(at.master, [at.topic])
    async with closing(producer):
        # Java's broker refuses with 419 what its 1.5 MB of cache cannot take, so: few big ones.
        sent = await producer.send_all([Message(at.topic, body) for body in big], 2)
        sent += await producer.send_all([Message(at.topic, body) for body in bodies], 500)
    bodies += big
    assert len({one.id for one in sent}) == len(bodies)
    puller = await at.clients.puller(at.master, at.group(), {at.topic: []})
    async with closing(puller):
        packages = await drain(puller, len(bodies))
    assert sorted(body for package in packages for body in package.bodies) == sorted(bodies)
    last: dict[str, int] = {}
    for package in packages:
        assert last.get(package.partition, -1) < package.offset
        last[package.partition] = package.offset


@scenario(PAIRS)
async def test_filters_let_through_what_they_name(at: At) -> None:
    """A consumer with filters sees its tags only, another group sees all."""
    tags = ["red", "green", "blue", None]
    messages = [Message(at.topic, b"%d" % n, tag=tags[n % 4]) for n in range(200)]
    producer = await at.clients.producer(at.master, [at.topic])
    async with closing(producer):
        await producer.send_all(messages, 50)
    some = await at.clients.puller(at.master, at.group("some"), {at.topic: ["red", "blue"]})
    every = await at.clients.puller(at.master, at.group("all"), {at.topic: []})
    async with closing(some, every):
        filtered = await drain(some, 100)
        whole = await drain(every, 200)
        assert await some.get(EMPTY_MS) is None
    got = Counter(message.tag for package in filtered for message in package.messages)
    assert got == {"red": 50, "blue": 50}
    assert Counter(m.tag for p in whole for m in p.messages) == dict.fromkeys(tags, 50)


@scenario(PAIRS, partitions=1)
async def test_confirm_moves_on_and_reject_does_not(at: At) -> None:
    """A rejected package comes again; the group's next member goes on behind the last confirm."""
    producer = await at.clients.producer(at.master, [at.topic])
    first = await at.clients.puller(at.master, at.group(), {at.topic: []})
    async with closing(producer, first):
        for message in numbered(at.topic, range(3)):
            await producer.send(message)
        package = await first.get(WAIT_MS)
        assert package is not None
        await first.confirm(package, consumed=False)
        again = await first.get(WAIT_MS)
        assert again is not None
        assert again.offset == package.offset
        assert again.bodies[: len(package.bodies)] == package.bodies
        after = await first.confirm(again)
        assert after > again.offset
        rest = 3 - len(again.messages)
        packages = [again, *(await drain(first, rest))]
        assert [b for p in packages for b in p.bodies] == [b"n000000", b"n000001", b"n000002"]
        await producer.send(Message(at.topic, b"left"))
        left = await first.get(WAIT_MS)
        assert left is not None
        assert left.bodies == [b"left"]
    second = await at.clients.puller(at.master, at.group(), {at.topic: []})
    async with closing(second):
        package = await second.get(WAIT_MS)
        assert package is not None
        assert package.bodies == [b"left"]
        await second.confirm(package)


@scenario(PAIRS)
async def test_push_hands_over_and_takes_back(at: At) -> None:
    """A handler that fails gets its package again; all arrive."""
    producer = await at.clients.producer(at.master, [at.topic])
    async with closing(producer):
        await producer.send_all(numbered(at.topic, range(500)), 100)
        pusher = await at.clients.pusher(at.master, at.group(), {at.topic: []}, throw_first=1)
        counts: Counter[bytes] = Counter()
        follower = asyncio.create_task(collect(pusher.packages(), counts))
        async with closing(pusher):
            await until(lambda: len(counts) == 500, f"500 messages, {len(counts)} came")
            await producer.send_all(numbered(at.topic, range(500, 600)), 100)
            await until(lambda: len(counts) == 600, f"600 messages, {len(counts)} came")
            assert pusher.thrown() == 1
        follower.cancel()
    assert set(counts) == {message.body for message in numbered(at.topic, range(600))}
    assert set(counts.values()) == {1}


@scenario(PAIRS)
async def test_latest_starts_at_the_end(at: At) -> None:
    """A new group that starts at the end does not see what was there before."""
    producer = await at.clients.producer(at.master, [at.topic])
    async with closing(producer):
        await producer.send_all(numbered(at.topic, range(40)), 10)
        puller = await at.clients.puller(at.master, at.group(), {at.topic: []}, start="latest")
        async with closing(puller):

            async def holds_all() -> bool:
                return len(await puller.partitions()) == 4

            await until(holds_all, "four partitions")
            assert await puller.get(EMPTY_MS) is None
            await producer.send_all(numbered(at.topic, range(40, 80)), 10)
            packages = await drain(puller, 40)
    got = sorted(body for package in packages for body in package.bodies)
    assert got == [message.body for message in numbered(at.topic, range(40, 80))]


@scenario(PAIRS)
async def test_silence_does_not_end_a_membership(at: At) -> None:
    """Heartbeats alone keep producer, consumer and partitions, past every timeout of servers."""
    producer = await at.clients.producer(at.master, [at.topic])
    puller = await at.clients.puller(at.master, at.group(), {at.topic: []})
    async with closing(producer, puller):

        async def holds_all() -> bool:
            return len(await puller.partitions()) == 4

        await until(holds_all, "four partitions")
        loop = asyncio.get_running_loop()
        end = loop.time() + CONSUMER_TIMEOUT_MS / 1000 + 12
        while loop.time() < end:
            assert await holds_all()
            await asyncio.sleep(0.5)
        await producer.send_all(numbered(at.topic, range(100)), 10)
        packages = await drain(puller, 100)
    assert len({package.partition for package in packages}) == 4


@scenario(PAIRS, partitions=8)
async def test_two_consumers_share_and_share_again(at: At) -> None:
    """8 partitions: one holds 8, two hold 4 each, one holds 8 again; nothing is missed."""
    producer = await at.clients.producer(at.master, [at.topic])
    one = await at.clients.puller(at.master, at.group(), {at.topic: []})
    counts: Counter[bytes] = Counter()
    followers = [asyncio.create_task(collect(one.packages(), counts))]

    async def hold(*pullers: tuple[Puller, int]) -> bool:
        held = [await puller.partitions() for puller, _ in pullers]
        assert len(set().union(*held)) <= 8
        return [len(keys) for keys in held] == [wanted for _, wanted in pullers] and (
            len(set().union(*held)) == 8
        )

    async with closing(producer):
        await one.follow()
        await producer.send_all(numbered(at.topic, range(400)), 50)
        await until(lambda: hold((one, 8)), "one holds 8")
        two = await at.clients.puller(at.master, at.group(), {at.topic: []})
        async with closing(two):
            followers.append(asyncio.create_task(collect(two.packages(), counts)))
            await two.follow()
            await until(lambda: hold((one, 4), (two, 4)), "4 and 4")
            await producer.send_all(numbered(at.topic, range(400, 800)), 50)
            await until(lambda: len(counts) == 800, "800 messages")
            await one.close()
            await until(lambda: hold((two, 8)), "the other holds 8")
            await producer.send_all(numbered(at.topic, range(800, 1200)), 50)
            await until(lambda: len(counts) == 1200, "1,200 messages")
        for follower in followers:
            follower.cancel()
    assert set(counts) == {message.body for message in numbered(at.topic, range(1200))}


@scenario(PAIRS, partitions=8)
async def test_a_dead_consumers_partitions_go_to_the_living(at: At) -> None:
    """Killed with a package in hand: the other one gets its partitions and that package."""
    producer = await at.clients.producer(at.master, [at.topic])
    mortal = await at.clients.mortal(at.master, at.group(), {at.topic: []})
    async with closing(producer):
        await producer.send_all(numbered(at.topic, range(400)), 50)
        confirmed: Counter[bytes] = Counter()
        package = await mortal.puller.get(WAIT_MS)
        assert package is not None
        await mortal.puller.confirm(package)
        confirmed.update(package.bodies)
        in_hand = await mortal.puller.get(WAIT_MS)
        assert in_hand is not None
        await mortal.kill()
        living = await at.clients.puller(at.master, at.group(), {at.topic: []})
        async with closing(living):
            packages = await drain(living, 400 - sum(confirmed.values()))
            assert len(await living.partitions()) == 8
    got = Counter(body for package in packages for body in package.bodies)
    assert set(in_hand.bodies) <= set(got)
    assert not set(got) & set(confirmed)
    assert len(got) + len(confirmed) == 400


@scenario(SEVERAL)
async def test_a_topic_on_several_brokers(at: At) -> None:
    """Sends go to both brokers, a consumer holds partitions of both and sees everything."""
    producer = await at.clients.producer(at.master, [at.topic])
    numbers = {str(broker.broker_id) for broker in at.deployed.brokers}
    async with closing(producer):

        async def reaches_all() -> bool:  # a producer hears of brokers one after the other
            sent = await producer.send_all([Message(at.topic, b"first")] * 40, 40)
            return {one.partition.split(":")[0] for one in sent} == numbers

        await until(reaches_all, "sends to both brokers")
        sent = await producer.send_all(numbered(at.topic, range(800)), 100)
        assert {one.partition.split(":")[0] for one in sent} == numbers
        puller = await at.clients.puller(at.master, at.group(), {at.topic: []})
        async with closing(puller):
            counts: Counter[bytes] = Counter()
            seen: dict[str, int] = {}
            follower = asyncio.create_task(collect(puller.packages(), counts, seen))
            await puller.follow()
            await until(lambda: len(counts) == 801, "800 messages and those before")
            assert len(await puller.partitions()) == 8
            follower.cancel()
    assert {partition.split(":")[0] for partition in seen} == numbers
    del counts[b"first"]
    assert counts == Counter(message.body for message in numbered(at.topic, range(800)))


@scenario(RESTARTS)
async def test_a_restarted_broker_keeps_what_it_acknowledged(at: At) -> None:
    """Under load. Ours is killed; Java's is told to end, as it acknowledges what memory holds."""
    producer = await at.clients.producer(at.master, [at.topic])
    puller = await at.clients.puller(at.master, at.group(), {at.topic: []})
    counts: Counter[bytes] = Counter()
    follower = asyncio.create_task(collect(puller.packages(), counts))
    async with closing(producer, puller):
        await puller.follow()
        await producer.start_load(at.topic, 5)
        await _acknowledges(producer, 300)
        await at.restart()
        await _acknowledges(producer, await producer.acknowledged() + 300)
        load = await producer.stop_load()
        with contextlib.suppress(AssertionError):
            await until(lambda: load.acknowledged <= set(counts), "all acknowledged messages")
        missing = sorted(load.acknowledged - set(counts))
        held = await puller.partitions()
        assert not missing, f"{len(missing)} of {len(load.acknowledged)}, {missing[:5]}, {held}"
    follower.cancel()


async def _acknowledges(producer: Producer, count: int) -> None:
    async def enough() -> bool:
        return await producer.acknowledged() >= count

    await until(enough, f"{count} acknowledged")
