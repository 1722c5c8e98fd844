"""What is wrong in a cluster, and how old the oldest unread messages are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import pytest
from typer.testing import CliRunner

from coherer._administration import members
from coherer._administration.access import opened
from coherer._administration.brokers import brokers
from coherer._administration.overview import Behind, oldest_ms, overview, unread_ages
from coherer._wire.rocketmq.bodies import ConsumerData, HeartbeatData, SubscriptionData
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.session import Session
from coherer.cli.main import app
from coherer.errors import ProtocolError
from coherer.message import Message
from coherer.testing import EmbeddedNode, embedded_node
from tests.waiting import until

run = CliRunner()


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with embedded_node(admin_port=0, default_partitions=2) as running:
        running.create_topic("orders", 2)
        yield running


@asynccontextmanager
async def dumb_member(
    node: EmbeddedNode, group_name: str, topic: str, remark: str | None = None
) -> AsyncGenerator[str]:
    """A member that says it is a Java client, and answers nothing, or only with a remark."""
    name = f"dumb-{group_name}"
    async with opened(node.rocketmq_url) as cluster:
        [broker] = await brokers(cluster)
    host, _, port = broker.address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = HeartbeatData(
        client_id=name,
        consumer_data_set=[
            ConsumerData(
                group_name=group_name,
                consume_type="CONSUME_PASSIVELY",
                message_model="CLUSTERING",
                consume_from_where="CONSUME_FROM_FIRST_OFFSET",
                subscription_data_set=[SubscriptionData(topic=topic, sub_string="*")],
            )
        ],
    )
    session = Session()
    _, frame = session.request(RequestCode.HEART_BEAT, {}, data.encode())
    writer.write(frame)
    accepted = asyncio.Event()

    async def read() -> None:
        while data := await reader.read(65_536):
            for command in session.receive(data):
                if command.is_response:
                    accepted.set()
                elif remark is not None:
                    writer.write(session.response(command, remark=remark))

    task = asyncio.create_task(read())
    await accepted.wait()
    try:
        yield name
    finally:
        writer.close()
        await task


async def leave_unread(node: EmbeddedNode, group_name: str) -> None:
    """Let a group acknowledge all messages, and send four more."""
    async with opened(node.rocketmq_url) as cluster:
        client = cluster.client
        async with client.producer("orders") as producer:
            (await producer.send_many([Message("orders", b"x")] * 4)).check()
            async with client.consumer(group_name, ["orders"], start="earliest") as consumer:
                async for _ in consumer.batches():
                    break
                await consumer.commit()
            (await producer.send_many([Message("orders", b"x")] * 4)).check()


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_the_age_of_unread_messages_is_that_of_the_oldest(
    node: EmbeddedNode, protocol: str
) -> None:
    name = f"behind-{protocol}"
    await leave_unread(node, name)
    url = node.url if protocol == "tubemq" else node.rocketmq_url
    async with opened(url) as cluster:
        [found] = await cluster.admin.groups.list(name)
        assert found.lag
        behind = {one.key for one in found.partitions if one.lag}

        async def known() -> bool:
            """An age of less than a millisecond is not reported."""
            return (await unread_ages(cluster, found)).keys() == behind

        await until(known)
        ages = await unread_ages(cluster, found)
        oldest = oldest_ms(found, ages)
        assert oldest is not None
        assert oldest == max(ages.values())
        seen = await overview(cluster)
        row = next(one for one in seen.behind if one.group == name)
        assert (row.lag, row.members, row.topics) == (found.lag, 0, ("orders",))
        assert row.oldest_ms is not None
        assert row.oldest_ms >= oldest
        assert any(name in one.text and "no consumer" in one.text for one in seen.problems)


async def test_an_unknown_age_stays_unknown(node: EmbeddedNode) -> None:
    await leave_unread(node, "unknown-age")
    async with opened(node.rocketmq_url) as cluster:
        [found] = await cluster.admin.groups.list("unknown-age")
        assert oldest_ms(found, {}) is None
        [first, *_] = [one.key for one in found.partitions if one.lag]
        lagging = [one for one in found.partitions if one.lag]
        if len(lagging) > 1:
            assert oldest_ms(found, {first: 5}) is None
        assert Behind("g", 1, None, 0, ()).oldest_ms is None


async def test_a_consumer_that_does_not_answer_is_named(
    node: EmbeddedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "ANSWER_S", 0.05)
    async with dumb_member(node, "frozen", "orders") as name, opened(node.rocketmq_url) as cluster:
        seen = await overview(cluster)
        [problem] = [one for one in seen.problems if "does not answer" in one.text]
        assert f"Consumer {name} (127.0.0.1:" in problem.text
        assert "of group frozen does not answer, for 0 s." in problem.text
        assert "Look at its process" in problem.action
        done = await asyncio.to_thread(
            run.invoke, app, ["groups", "describe", "frozen", "-u", node.rocketmq_url]
        )
        assert done.exit_code == 0
        assert f"! Consumer {name}" in done.stderr
        assert "no, for " in done.stdout


async def test_of_many_silent_consumers_some_are_not_asked(
    node: EmbeddedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "ANSWER_S", 0.05)
    monkeypatch.setattr(members, "ASKING_S", 0.01)
    monkeypatch.setattr(members, "AT_ONCE", 1)
    async with (
        dumb_member(node, "frozen1", "orders") as first,
        dumb_member(node, "frozen2", "orders") as second,
        opened(node.rocketmq_url) as cluster,
    ):
        groups = await cluster.admin.groups.list("frozen1", "frozen2")
        found = await members.check(cluster, [one for group in groups for one in group.members])
        assert [(one.client.id, one.answers) for one in found] == [(first, False), (second, None)]


async def test_a_consumer_that_answers_without_its_state_is_there(node: EmbeddedNode) -> None:
    """Go's clients do, once a rate of theirs is not a number."""
    remark = "json marshal error: json: unsupported value: NaN"
    async with (
        dumb_member(node, "vague", "orders", remark) as name,
        opened(node.rocketmq_url) as cluster,
    ):
        with pytest.raises(ProtocolError, match=f"Consumer {name} of group vague .* {remark}."):
            await cluster.admin.groups.running("vague", name)
        assert not [one for one in (await overview(cluster)).problems if name in one.text]
        described = await asyncio.to_thread(
            run.invoke, app, ["groups", "describe", "vague", "-u", node.rocketmq_url, "--json"]
        )
        assert json.loads(described.stdout)["health"] == [
            {"id": name, "answers": True, "silent_ms": None}
        ]


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_members_with_different_topics_are_both_named(
    node: EmbeddedNode, protocol: str
) -> None:
    node.create_topic("payments", 2)
    url = node.url if protocol == "tubemq" else node.rocketmq_url
    async with (
        opened(node.rocketmq_url) as one,
        opened(node.rocketmq_url) as other,
        one.client.consumer("divided", ["orders"], start="latest") as first,
        other.client.consumer("divided", ["payments"], start="latest") as second,
        opened(url) as cluster,
    ):
        await first.wait_assigned(60_000)
        await second.wait_assigned(60_000)
        seen = await overview(cluster)
        [problem] = [each for each in seen.problems if "different topics" in each.text]
        assert "Members of group divided" in problem.text
        assert " has orders" in problem.text
        assert " has payments" in problem.text
        assert problem.text.count("(127.0.0.1:") == 2
        assert "its own group" in problem.action
