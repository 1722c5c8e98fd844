from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator

import pytest

from coherer._administration import dead_letters
from coherer._administration.access import Cluster, RocketCluster, opened
from coherer.testing import EmbeddedNode, embedded_node
from tests.console import filling
from tests.console.visitor import Visitor, visiting
from tests.waiting import until


@pytest.fixture
def node() -> Iterator[EmbeddedNode]:
    """A node of each test: they change it."""
    with embedded_node(trace_topic=True) as running:
        yield running


@pytest.fixture
async def cluster(node: EmbeddedNode) -> AsyncIterator[Cluster]:
    await filling.fill(node.rocketmq_url)
    async with opened(node.rocketmq_url) as one:
        await filling.wait_dead(one)
        yield one


@pytest.fixture
async def visitor(node: EmbeddedNode, cluster: Cluster) -> AsyncIterator[Visitor]:
    async with visiting(node.rocketmq_url) as one:
        yield one


async def letters_of(cluster: Cluster) -> list[str]:
    """The ids of the dead letters, the oldest first."""
    page = await dead_letters.page(cluster, filling.GROUP, newest_first=False)
    return [letter.id for letter in page.letters]


async def written(cluster: Cluster, topic: str) -> int:
    """The number of messages of a topic."""
    return sum(high - low for low, high in (await cluster.client.offsets(topic)).values())


async def ended(visitor: Visitor, text: str) -> str:
    """The text of a job's page when it has ended."""
    [job] = [job for job in text.split() if job.startswith("/jobs/")]
    found = ""

    async def done() -> bool:
        nonlocal found
        found = await visitor.page(job)
        return "Running" not in found

    await until(done, 60)
    return found


async def replay(visitor: Visitor, **data: str | list[str]) -> str:
    """Start a replay, and wait for its end."""
    answer = await visitor.post("/dead-letters/billing/replay", data)
    assert answer.status_code == 303
    return await ended(visitor, answer.headers["location"])


async def test_chosen_dead_letters_are_replayed_once(visitor: Visitor, cluster: Cluster) -> None:
    first, second, third = await letters_of(cluster)
    assert await written(cluster, "orders") == 12
    text = await replay(visitor, letter=[first, second])
    assert "Done" in text
    assert "sent 2" in text
    assert await written(cluster, "orders") == 14
    page = await visitor.page("/dead-letters/billing?order=oldest")
    assert page.count("Replayed") == 2
    assert page.count("Waiting") == 1
    text = await replay(visitor, scope="all")
    assert "3 of 3 examined" in text
    assert "sent 1" in text
    assert "sent by an earlier replay 2" in text
    assert await written(cluster, "orders") == 15
    assert third in (await visitor.get("/dead-letters/billing")).text


async def test_a_replay_to_another_topic(visitor: Visitor, cluster: Cluster) -> None:
    before = await written(cluster, "payments")
    text = await replay(visitor, scope="all", to="payments", topic="orders")
    assert "sent 3" in text
    assert await written(cluster, "payments") == before + 3
    assert await written(cluster, "orders") == 12
    failed = await replay(visitor, scope="all", to="nothing-here")
    assert "Failed" in failed
    assert "nothing-here" in failed


async def test_a_replay_of_nothing_shows_a_notice(visitor: Visitor, cluster: Cluster) -> None:
    text = await visitor.change("/dead-letters/billing/replay", {"scope": "chosen"})
    assert "Nothing was selected" in text
    assert await written(cluster, "orders") == 12


async def test_a_purge_asks_for_the_name(visitor: Visitor, cluster: Cluster) -> None:
    wrong = await visitor.post("/dead-letters/billing/purge", {"confirm": "bill"})
    assert wrong.status_code == 400
    assert len(await letters_of(cluster)) == 3
    text = await visitor.change("/dead-letters/billing/purge", {"confirm": "billing"})
    assert "The dead letters were deleted" in text
    assert await letters_of(cluster) == []


async def test_topics_are_created_changed_and_deleted(visitor: Visitor, cluster: Cluster) -> None:
    text = await visitor.change("/topics", {"name": "news", "partitions": "3"})
    assert "The topic was created" in text
    assert "Partitions 3" in text
    change = {"broker": "broker-a", "partitions": "5", "access": "4"}
    text = await visitor.change("/topics/news/settings", change)
    assert "The topic was changed" in text
    assert "Partitions 5" in text
    assert "Writable no" in text
    again = await visitor.post("/topics", {"name": "news", "partitions": "3"})
    assert again.status_code == 409
    assert "exists already" in again.text
    for partitions in ("", "0", "many"):
        bad = await visitor.post("/topics", {"name": "more", "partitions": partitions})
        assert bad.status_code == 400
    refused = await visitor.post("/topics/news/delete", {"confirm": "new"})
    assert refused.status_code == 400
    text = await visitor.change("/topics/news/delete", {"confirm": "news"})
    assert "were deleted" in text
    assert "news" not in await cluster.admin.topics.list()
    assert [one.name for one in await cluster.admin.topics.list("news")] == []


async def test_offsets_are_reset_as_previewed(visitor: Visitor, cluster: Cluster) -> None:
    preview = await visitor.page("/groups/billing/reset?topic=orders&to=latest")
    assert "and skips" in preview
    text = await visitor.change("/groups/billing/reset", {"topic": "orders", "to": "latest"})
    assert "The offsets were reset" in text
    [group] = await cluster.admin.groups.list("billing")
    mine = [one for one in group.partitions if one.topic == "orders"]
    assert [one.lag for one in mine] == [0, 0]
    await visitor.change(
        "/groups/billing/reset", {"topic": "orders", "to": "time", "time": "2020-01-01T00:00"}
    )
    [group] = await cluster.admin.groups.list("billing")
    assert sum(one.lag or 0 for one in group.partitions if one.topic == "orders") == 12
    bad = await visitor.post("/groups/billing/reset", {"topic": "orders", "to": "time"})
    assert bad.status_code == 400


async def test_a_group_is_deleted_only_without_members(visitor: Visitor, cluster: Cluster) -> None:
    async with cluster.client.consumer("billing", "orders") as consumer:
        await consumer.wait_assigned(30_000)
        refused = await visitor.post("/groups/billing/delete", {"confirm": "billing"})
        assert refused.status_code == 400
        assert "has members" in refused.text
    text = await visitor.change("/groups/billing/delete", {"confirm": "billing"})
    assert "The group and its offsets were deleted" in text
    assert isinstance(cluster, RocketCluster)
    assert "billing" not in await cluster.admin.groups.names()


async def test_a_message_is_sent(visitor: Visitor, cluster: Cluster) -> None:
    data = {
        "topic": "payments", "tag": "paid", "keys": "k1 k2", "properties": "a=1\r\nb = 2\r\n\r\n",
        "body": '{"x":\r\n1}',
    }  # fmt: skip
    text = await visitor.change("/send", data)
    assert "Sent to payments" in text
    assert isinstance(cluster, RocketCluster)

    async def found() -> bool:
        return len(await cluster.admin.messages.find("payments", "k2")) == 1

    await until(found)
    [message] = await cluster.admin.messages.find("payments", "k2")
    assert (message.body, message.tag, message.keys) == (b'{"x":\n1}', "paid", ("k1", "k2"))
    assert dict(message.properties) == {"a": "1", "b": "2"}


async def test_a_form_that_comes_twice_sends_one_message(
    node: EmbeddedNode, visitor: Visitor
) -> None:
    node.create_topic("twice")
    shown = re.search(r'name="form" value="([^"]+)"', (await visitor.get("/send")).text)
    assert shown is not None
    data = {"topic": "twice", "body": "x", "form": shown[1]}
    sent = node.requests.count("send", topic="twice")
    double_click = await asyncio.gather(*(visitor.change("/send", data) for _ in range(2)))
    assert all("Sent to twice" in text for text in double_click)
    reloaded = await visitor.change("/send", data)
    assert "Sent to twice" in reloaded
    assert "not sent once more" in reloaded
    assert node.requests.count("send", topic="twice") == sent + 1
    assert "not sent once more" not in await visitor.change("/send", {**data, "body": "y"})
    assert node.requests.count("send", topic="twice") == sent + 2


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"topic": "payments", "body": "x", "properties": "novalue"}, "has no value"),
        ({"topic": "payments", "body": ""}, "empty"),
        ({"topic": "", "body": "x"}, "topic"),
    ],
)
async def test_a_message_that_cannot_be_sent_stays_in_the_form(
    visitor: Visitor, data: dict[str, str], words: str
) -> None:
    answer = await visitor.post("/send", data)
    assert answer.status_code == 400
    assert words in answer.text
    assert 'role="alert"' in answer.text
    assert data.get("properties", "") in answer.text


async def test_a_message_over_tubemq_has_no_keys(node: EmbeddedNode) -> None:
    async with opened(node.url) as cluster, visiting(node.url) as visitor:
        await cluster.admin.topics.create("plain", 1, wait_ms=30_000)
        bad = await visitor.post("/send", {"topic": "plain", "body": "x", "keys": "k"})
        assert bad.status_code == 400
        assert "no keys" in bad.text
        assert "Sent to plain" in await visitor.change("/send", {"topic": "plain", "body": "x"})
        text = await visitor.change("/topics", {"name": "other", "partitions": "2"})
        assert "Partitions 2" in text
        change = {"partitions": "3", "access": "4", "broker": "1"}
        text = await visitor.change("/topics/plain/settings", change)
        assert "Partitions 3" in text
        assert "Writable no" in text
        for broker in ("", "x"):
            bad = await visitor.post("/topics/plain/settings", {**change, "broker": broker})
            assert bad.status_code == 400


async def test_accounts_are_listed_saved_and_deleted_without_secrets() -> None:
    users = {"operator1": "operator-secret"}
    with embedded_node(users=users) as node:
        access = {"user": "operator1", "password": users["operator1"]}
        async with visiting(node.rocketmq_url, **access) as visitor:
            data = {
                "name": "shop-app", "secret": "shop-secret", "topics": "DENY", "groups": "DENY",
                "topic_perms": "orders=PUB|SUB", "group_perms": "", "address": "",
            }  # fmt: skip
            text = await visitor.change("/accounts", data)
            assert "The account was saved" in text
            assert "shop-app" in text
            assert "orders=PUB|SUB" in text
            page = (await visitor.get("/accounts")).text
            assert "shop-secret" not in page
            assert "operator-secret" not in page
            bad = await visitor.post("/accounts", {**data, "topics": "ALL"})
            assert bad.status_code == 400
            refused = await visitor.post("/accounts/shop-app/delete", {"confirm": "x"})
            assert refused.status_code == 400
            text = await visitor.change("/accounts/shop-app/delete", {"confirm": "shop-app"})
            assert "The account was deleted" in text
            assert "shop-app" not in await visitor.page("/accounts")


async def test_a_message_of_traced_clients_shows_who_received_it(
    node: EmbeddedNode, visitor: Visitor, cluster: Cluster
) -> None:
    from coherer import Message, rocketmq

    async with rocketmq.connect(node.rocketmq_url) as client:
        async with client.producer("orders", group="traced-shop", trace=True) as producer:
            receipt = await producer.send(Message("orders", b"{}", keys=("traced",)))
        async with client.consumer("traced", "orders", start="earliest", trace=True) as consumer:
            async for message in consumer:
                message.ack()
                if message.keys == ("traced",):
                    break
            await consumer.commit()
    url = f"/messages/view?topic=orders&id={receipt.id}"

    async def complete() -> bool:
        text = await visitor.page(url)
        return all(words in text for words in ("traced-shop", "delivered", "processed"))

    await until(complete, 60)
