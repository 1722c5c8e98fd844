"""What operators do with dead letters, as scenarios for our node and for Java's clusters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from coherer._administration import dead_letters
from coherer._administration.access import RocketCluster
from coherer._administration.dead_letters import DeadLetter, Filter
from coherer._administration.export import export
from coherer._administration.replay import ReplayProgress, replay, replayed
from coherer._administration.replay_lock import REPLAY_GROUP
from coherer.errors import RefusedError, UnavailableError
from coherer.rocketmq import Client, Queue, StoredMessage
from tests.client.rocket_scenario import WAIT_S, Scenario, until


async def made_dead(scenario: Scenario, *bodies: str) -> RocketCluster:
    """A cluster in which the group has given up these messages, in this order."""
    client = scenario.client()
    await scenario.make(client, 2)
    await scenario.send(
        client, *bodies, queue=0, tag="UA", keys=("k1", "k2"), properties={"p": "q"}
    )
    await dead_from(client, scenario, len(bodies))
    await scenario.dead(client, len(bodies))
    return RocketCluster(scenario.url, client, client.admin())


async def dead_from(client: Client, scenario: Scenario, count: int) -> None:
    """Have the group give up its next messages."""
    async with client.consumer(scenario.group, scenario.topic, start="earliest") as consumer:
        async with asyncio.timeout(WAIT_S):
            async for message in consumer:
                await message.dead_letter()
                count -= 1
                if not count:
                    break


async def everything(client: Client, topic: str) -> list[StoredMessage]:
    """All messages of a topic, in the order they were stored."""
    found: list[StoredMessage] = []
    for queue in await client.partitions(topic):
        async with client.reader(queue, 0) as reader:
            while (batch := await reader.read()) is not None:
                found += batch
    return sorted(found, key=lambda message: message.physical_offset)


async def replays(client: Client, topic: str, count: int = 0) -> list[str]:
    """The bodies of a topic's messages that were replayed, when there are at least so many.

    Java's brokers show a message a moment after they have taken it.
    """
    found: list[str] = []

    async def enough() -> bool:
        messages = await everything(client, topic)
        found[:] = [one.body.decode() for one in messages if "cohererReplayOf" in one.properties]
        return len(found) >= count

    await until(enough)
    return sorted(found)


def texts(letters: Sequence[DeadLetter]) -> list[str]:
    return [letter.body.decode() for letter in letters]


async def dead_letters_are_listed_with_their_origin(scenario: Scenario) -> None:
    cluster = await made_dead(scenario, "a", "b", "c")
    [queue] = [one for one in await dead_letters.queues(cluster) if one.group == scenario.group]
    assert (queue.count, queue.topic) == (3, f"%DLQ%{scenario.group}")
    [part] = queue.parts
    assert (part.broker, part.min_offset, part.max_offset) == ("broker-a", 0, 3)
    page = await dead_letters.page(cluster, scenario.group)
    assert (texts(page.letters), page.cursor) == (["c", "b", "a"], None)
    newest, _, oldest = page.letters
    assert (queue.oldest_ms, queue.newest_ms) == (oldest.stored_ms, newest.stored_ms)
    assert (oldest.topic, oldest.tag, oldest.keys) == (scenario.topic, "UA", ("k1", "k2"))
    assert (oldest.attempts, oldest.reason, dict(oldest.properties)) == (1, None, {"p": "q"})
    assert (oldest.broker, oldest.partition, oldest.offset) == ("broker-a", 0, 0)
    [sent, *_] = await everything(cluster.client, scenario.topic)
    assert (oldest.origin_id, oldest.unique_id) == (sent.id, sent.unique_id)
    assert oldest.born_ms == sent.born_ms
    assert oldest.stored_ms >= sent.stored_ms
    for name in (oldest.id, oldest.unique_id):
        assert await dead_letters.get(cluster, scenario.group, name) == oldest
    for name in (sent.id, "0" * 32, "nothing"):
        assert await dead_letters.get(cluster, scenario.group, name) is None
    assert await dead_letters.queue(cluster, f"{scenario.group}_other") is None


async def pages_follow_one_another(scenario: Scenario) -> None:
    cluster = await made_dead(scenario, *"abcde")
    for newest_first, order in ((True, "edcba"), (False, "abcde")):
        seen: list[str] = []
        cursor = None
        sizes: list[int] = []
        while True:
            page = await dead_letters.page(
                cluster, scenario.group, newest_first=newest_first, limit=2, cursor=cursor
            )
            seen += texts(page.letters)
            sizes.append(len(page.letters))
            cursor = page.cursor
            if cursor is None:
                break
        assert ("".join(seen), sizes) == (order, [2, 2, 1])
    letters = (await dead_letters.page(cluster, scenario.group, newest_first=False)).letters
    wanted = Filter(ids=frozenset({letters[1].id, letters[3].unique_id}))
    chosen = await dead_letters.page(cluster, scenario.group, where=wanted, newest_first=False)
    assert (texts(chosen.letters), chosen.scanned) == (["b", "d"], 5)
    other = await dead_letters.page(cluster, scenario.group, where=Filter(topic="other"))
    assert other.letters == ()


async def a_replay_sends_each_dead_letter_once(scenario: Scenario) -> None:
    cluster = await made_dead(scenario, "a", "b", "c")
    client, group = cluster.client, scenario.group
    letters = (await dead_letters.page(cluster, group, newest_first=False)).letters
    planned = await replay(cluster, group, dry_run=True)
    assert (planned.sent, planned.already) == (3, 0)
    assert await replays(client, scenario.topic) == []
    one = await replay(cluster, group, where=Filter(ids=frozenset({letters[1].id})))
    assert (one.total, one.seen, one.sent, one.already) == (3, 3, 1, 0)
    await until(lambda: _found(cluster, letters[1:2]))
    shown: list[ReplayProgress] = []
    rest = await replay(cluster, group, show=shown.append)
    assert (rest.sent, rest.already) == (2, 1)
    assert shown[-1] == rest
    await until(lambda: _found(cluster, letters))
    again = await replay(cluster, group)
    assert (again.sent, again.already) == (0, 3)
    assert await replays(client, scenario.topic, 3) == ["a", "b", "c"]
    copies = {
        message.body: message
        for message in await everything(client, scenario.topic)
        if "cohererReplayOf" in message.properties
    }
    copy = copies[b"a"]
    assert (copy.tag, copy.keys, copy.attempt) == ("UA", ("k1", "k2"), 0)
    assert dict(copy.properties) == {"p": "q", "cohererReplayOf": letters[0].id}
    assert copy.time == (await everything(client, scenario.topic))[0].time


async def _found(cluster: RocketCluster, letters: Sequence[DeadLetter]) -> bool:
    """Whether the index has the replays of all these dead letters."""
    return await replayed(cluster, letters) == {letter.id for letter in letters}


async def a_replay_goes_to_another_topic(scenario: Scenario) -> None:
    cluster = await made_dead(scenario, "a", "b")
    other = f"{scenario.topic}_other"
    with pytest.raises(RefusedError, match="Create it"):
        await replay(cluster, scenario.group, to=other)
    await scenario.make(cluster.client, 1, other)
    done = await replay(cluster, scenario.group, to=other)
    assert done.sent == 2
    assert await replays(cluster.client, other, 2) == ["a", "b"]
    assert await replays(cluster.client, scenario.topic) == []
    # The same dead letters, to their own topic: that is another replay.
    assert (await replay(cluster, scenario.group)).sent == 2


async def a_replay_continues_after_an_interruption(scenario: Scenario) -> None:
    bodies = [f"{number:02}" for number in range(40)]
    cluster = await made_dead(scenario, *bodies)

    def interrupt(progress: ReplayProgress) -> None:
        if progress.sent:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await replay(cluster, scenario.group, show=interrupt)
    before = await replays(cluster.client, scenario.topic, 1)
    assert 0 < len(before) < 40
    letters = (await dead_letters.page(cluster, scenario.group)).letters
    sent = [letter for letter in letters if letter.body.decode() in before]
    await until(lambda: _found(cluster, sent))
    done = await replay(cluster, scenario.group)
    # Those that were under way arrive after the interruption.
    assert done.already >= len(before)
    assert done.already + done.sent == 40
    assert await replays(cluster.client, scenario.topic, 40) == bodies


async def one_replay_runs_at_a_time(scenario: Scenario) -> None:
    cluster = await made_dead(scenario, "a")
    found = await dead_letters.queue(cluster, scenario.group)
    assert found is not None
    places = [Queue(found.topic, part.broker, part.partition) for part in found.parts]
    other = scenario.client().admin()
    assert await other.groups.lock(REPLAY_GROUP, places) == places
    with pytest.raises(UnavailableError, match="Another replay"):
        await replay(cluster, scenario.group, lock_wait_s=0)
    assert (await replay(cluster, scenario.group, dry_run=True)).sent == 1
    await other.groups.unlock(REPLAY_GROUP, places)
    assert (await replay(cluster, scenario.group)).sent == 1
    # It has released its lock.
    assert await other.groups.lock(REPLAY_GROUP, places) == places
    await other.groups.unlock(REPLAY_GROUP, places)


async def two_replays_of_one_client_send_once(scenario: Scenario) -> None:
    bodies = [f"{number:02}" for number in range(40)]
    cluster = await made_dead(scenario, *bodies)
    done = await asyncio.gather(*(replay(cluster, scenario.group) for _ in range(2)))
    assert sorted((one.sent, one.already) for one in done) == [(0, 40), (40, 0)]
    assert await replays(cluster.client, scenario.topic, 40) == bodies


async def a_purge_deletes_all(scenario: Scenario) -> None:
    cluster = await made_dead(scenario, "a", "b")
    assert (await replay(cluster, scenario.group)).sent == 2
    assert await dead_letters.purge(cluster, scenario.group) == 2
    assert await dead_letters.queue(cluster, scenario.group) is None
    assert await dead_letters.purge(cluster, scenario.group) == 0
    assert (await replay(cluster, scenario.group)).total == 0
    # New dead letters at the same offsets are not taken for the old ones.
    await dead_from(cluster.client, scenario, 2)
    await scenario.dead(cluster.client, 2)
    letters = (await dead_letters.page(cluster, scenario.group)).letters
    assert {letter.replay_of is None for letter in letters} == {False}
    assert (await replay(cluster, scenario.group)).sent == 2


async def dead_letters_are_exported(scenario: Scenario, tmp_path: Path) -> None:
    cluster = await made_dead(scenario, "a", "b")
    path = tmp_path / "letters.jsonl"
    assert await export(cluster, scenario.group, path) == 2
    first, second = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert (first["body"], second["body"]) == ("a", "b")
    assert (first["topic"], first["tag"], first["keys"]) == (scenario.topic, "UA", ["k1", "k2"])
    assert (first["group"], first["attempts"]) == (scenario.group, 1)
    assert not list(path.parent.glob("*.partial"))


async def the_reason_of_a_retry_reaches_the_dead_letter(scenario: Scenario) -> None:
    client = scenario.client()
    await scenario.make(client, 1)
    await client.admin().groups.create(scenario.group, max_retries=1)
    sent = await scenario.send(client, "limit", "now", "plain", tag="UA", properties={"p": "q"})
    first = await everything(client, scenario.topic)
    seen: list[tuple[str, int, str | None]] = []
    left = 5
    async with client.consumer(scenario.group, {scenario.topic: "UA"}, start="earliest") as members:
        async with asyncio.timeout(WAIT_S):
            async for message in members:
                reason = message.properties.get("cohererRetryReason")
                seen.append((message.body.decode(), message.attempt, reason))
                match message.body:
                    case b"now":
                        await message.dead_letter(reason="no such\x01account\n")
                    case b"plain":
                        await message.retry(later=1)
                    case _:
                        await message.retry(later=1, reason=f"failure {message.attempt + 1}")
                left -= 1
                if not left:
                    break
    assert sorted(seen) == [
        ("limit", 0, None),
        ("limit", 1, "failure 1"),
        ("now", 0, None),
        ("plain", 0, None),
        ("plain", 1, None),
    ]
    await scenario.dead(client, 3)
    cluster = RocketCluster(scenario.url, client, client.admin())
    letters = (await dead_letters.page(cluster, scenario.group)).letters
    found = {letter.body.decode(): letter for letter in letters}
    counts = {body: (letter.attempts, letter.reason) for body, letter in found.items()}
    assert counts == {
        "limit": (2, "failure 2"),
        "now": (1, "no such account"),
        "plain": (2, None),
    }
    for body, receipt, message in zip(("limit", "now", "plain"), sent, first, strict=True):
        letter = found[body]
        assert (letter.topic, letter.origin_id) == (scenario.topic, receipt.id)
        assert (letter.unique_id, letter.born_ms) == (receipt.unique_id, message.born_ms)
        assert (letter.tag, dict(letter.properties)) == ("UA", {"p": "q"})
    wanted = dead_letters.Filter(reason="FAILURE")
    page = await dead_letters.page(cluster, scenario.group, where=wanted)
    assert texts(page.letters) == ["limit"]
    # A replay does not carry the reason on.
    await replay(cluster, scenario.group, where=wanted)
    await replays(client, scenario.topic, 1)
    copy = (await everything(client, scenario.topic))[-1]
    assert set(copy.properties) == {"p", "cohererReplayOf"}


async def a_batch_is_given_up_with_a_reason(scenario: Scenario) -> None:
    client = scenario.client()
    await scenario.make(client, 1)
    await scenario.send(client, "a", "b")
    async with client.consumer(scenario.group, scenario.topic, start="earliest") as consumer:
        left = 2
        async with asyncio.timeout(WAIT_S):
            async for batch in consumer.batches():
                left -= len(batch)
                await batch.dead_letter(reason="a bad batch")
                if not left:
                    break
    await scenario.dead(client, 2)
    cluster = RocketCluster(scenario.url, client, client.admin())
    letters = (await dead_letters.page(cluster, scenario.group)).letters
    assert [letter.reason for letter in letters] == ["a bad batch"] * 2


async def an_orderly_consumer_gives_a_reason(scenario: Scenario) -> None:
    client = scenario.client()
    await scenario.make(client, 1)
    await scenario.send(client, "a")
    options = {"start": "earliest", "orderly": True, "max_attempts": 2, "suspend_ms": 10}
    async with client.consumer(scenario.group, scenario.topic, **options) as consumer:
        left = 2
        async with asyncio.timeout(WAIT_S):
            async for message in consumer:
                await message.retry(reason=f"failure {message.attempt + 1}")
                left -= 1
                if not left:
                    break
    await scenario.dead(client, 1)
    cluster = RocketCluster(scenario.url, client, client.admin())
    [letter] = (await dead_letters.page(cluster, scenario.group)).letters
    assert (letter.attempts, letter.reason, letter.topic) == (2, "failure 2", scenario.topic)


SCENARIOS = (
    the_reason_of_a_retry_reaches_the_dead_letter,
    a_batch_is_given_up_with_a_reason,
    an_orderly_consumer_gives_a_reason,
    dead_letters_are_listed_with_their_origin,
    pages_follow_one_another,
    a_replay_sends_each_dead_letter_once,
    a_replay_goes_to_another_topic,
    a_replay_continues_after_an_interruption,
    one_replay_runs_at_a_time,
    two_replays_of_one_client_send_once,
    a_purge_deletes_all,
)
