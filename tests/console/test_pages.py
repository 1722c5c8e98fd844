from __future__ import annotations

import asyncio
import re

import pytest

from coherer._administration import brokers as listing
from coherer._administration import dead_letters, overview
from coherer._administration.access import Cluster, opened
from coherer._common.node_status import NodeStatus
from coherer.console.facts import Facts
from coherer.message import Message
from coherer.testing import EmbeddedNode, embedded_node
from tests.console import filling
from tests.console.visitor import Visitor, visiting, words
from tests.waiting import until

SHARED = {
    "/topics": ("orders", "payments"),
    "/topics?q=pay": ("payments",),
    "/topics/orders": ("Messages 12", "Read by", "billing"),
    "/groups": ("billing",),
    "/groups/billing": ("Lag", "Partitions", "Filters"),
    "/groups/billing/reset": ("Reset the offsets",),
    "/groups/billing/reset?topic=orders&to=earliest": ("It delivers",),
    "/groups/billing/reset?topic=orders&to=latest": ("and skips",),
    "/groups/billing/reset?topic=orders&to=time&time=2020-01-01T00:00": ("It delivers",),
    "/groups/billing/delete": ("its offsets in all topics",),
    "/topics/orders/delete": ("12 messages", "billing"),
    "/messages": ("Topic", "Since"),
    "/messages?topic=orders": ("12 messages", '"order": 3'),
    "/messages?topic=orders&contains=%22order%22%3A+7": ("1 message",),
    "/messages?topic=orders&until=2020-01-01T00:00": ("Nothing was found",),
    "/messages?topic=nothing": ("topic",),
    "/clients": ("Consumers", "Producers"),
    "/brokers": ("running",),
    "/accounts": ("Accounts",),
    "/send": ("Body",),
}
ROCKET = {
    "/dead-letters": ("billing", "3"),
    "/dead-letters?q=xyz": ("No group whose name contains",),
    "/dead-letters/billing": ("3 dead letters", "the card was declined", "not given", "Waiting"),
    "/dead-letters/billing?order=oldest": ("Oldest first",),
    "/dead-letters/billing?topic=payments": ("No dead letter matches",),
    "/dead-letters/billing?tag=new&since=2020-01-01T00:00": ("Filter (on)", "Waiting"),
    "/dead-letters/billing/purge": ("This deletes 3 dead letters",),
    "/topics/orders/settings": ("Partitions for writing",),
    "/topics?system=1": ("%DLQ%billing",),
    "/messages?by=key&topic=orders&key=order-4": ("1 message", "order-4"),
    "/clients?producers=shop": ("No producer of this group is connected",),
    "/brokers/broker-a": ("Master at", "settings"),
}
TUBE = {
    "/dead-letters": ("TubeMQ has no dead letters",),
    "/brokers/1": ("Broker at",),
    "/accounts": ("do not list their accounts",),
}


@pytest.mark.parametrize("path", [*SHARED, *ROCKET])
async def test_pages_show_a_cluster_over_rocketmq(visitor: Visitor, path: str) -> None:
    text = await visitor.page(path)
    for expected in {**SHARED, **ROCKET}[path]:
        if expected != "Filters":
            assert expected in text, text


@pytest.mark.parametrize("path", [*SHARED, *TUBE])
async def test_pages_show_a_cluster_over_tubemq(tube_visitor: Visitor, path: str) -> None:
    text = await tube_visitor.page(path)
    for expected in {**SHARED, **TUBE}[path]:
        if expected != "Filters":
            assert expected in text, text


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_the_first_page_shows_what_needs_attention(node: EmbeddedNode, protocol: str) -> None:
    url = node.url if protocol == "tubemq" else node.rocketmq_url
    async with visiting(url) as visitor:
        assert (await visitor.get("/")).headers["location"] == "/overview"
        text = await visitor.page("/")
        for expected in (
            "unread messages and no consumer. Start the consumers",
            "Brokers running 1 of 1",
            "Groups that lag most",
            "billing",
        ):
            assert expected in text, text
        row = text.partition("Oldest unread Members Topics")[2]
        assert "unknown" not in row.partition("15m")[0], "a node reports the ages"


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_lists_are_sorted_and_filtered_by_lag(node: EmbeddedNode, protocol: str) -> None:
    async with opened(node.rocketmq_url) as cluster:
        await cluster.admin.topics.create("aa-read", 1, exist_ok=True)
        async with cluster.client.producer("aa-read") as producer:
            await producer.send(Message("aa-read", b"x"))
        async with cluster.client.consumer("aa-done", ["aa-read"], start="earliest") as consumer:
            async for batch in consumer.batches():
                await consumer.commit(batch)
                break
    url = node.url if protocol == "tubemq" else node.rocketmq_url
    async with visiting(url) as visitor:
        by_name = await visitor.page("/groups")
        assert by_name.index("aa-done") < by_name.index("billing")
        by_lag = await visitor.get("/groups?sort=lag")
        assert 'aria-sort="descending"' in by_lag.text
        assert by_lag.text.index("/groups/billing") < by_lag.text.index("/groups/aa-done")
        upwards = words((await visitor.get("/groups?sort=lag&order=up")).text)
        assert upwards.index("aa-done") < upwards.index("billing")
        behind = await visitor.page("/groups?only=behind")
        assert "billing" in behind
        assert "aa-done" not in behind

        async def sampled() -> bool:
            return "orders" in await visitor.page("/topics?only=behind")

        await until(sampled)
        topics = await visitor.page("/topics?only=behind&sort=lag")
        assert "aa-read" not in topics
        listed = words((await visitor.get("/topics?sort=messages")).text)
        assert listed.index("orders") < listed.index("aa-read")
        assert "billing" in listed, "the list says which groups read a topic"
        assert "aa-read" in await visitor.page("/topics?sort=nonsense&order=nonsense")


async def test_a_topic_says_who_reads_it_and_how_far(visitor: Visitor) -> None:
    text = await visitor.page("/topics/orders")
    row = text.partition("Lag in this topic Oldest unread Members")[2].partition("Producers")[0]
    assert row.split()[0] == "billing"
    assert "unknown" not in row


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/topics/nothing",
        "/groups/nothing",
        "/groups/nothing/reset",
        "/groups/nothing/delete",
        "/dead-letters/nothing",
        "/dead-letters/nothing/export",
        "/dead-letters/nothing/purge",
        "/dead-letters/billing/letters/nothing",
        "/brokers/nothing",
        "/jobs/nothing",
        "/messages/view?topic=orders&partition=0&offset=99999",
    ],
)
async def test_missing_things_are_explained(visitor: Visitor, path: str) -> None:
    answer = await visitor.get(path)
    assert answer.status_code == 404
    assert 'role="alert"' in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/groups/billing/reset?topic=orders&to=time&time=tomorrow",
        "/groups/billing/reset?topic=orders&to=nowhere",
        "/dead-letters/billing?since=yesterday",
        "/dead-letters/billing?cursor=x",
        "/messages/view?topic=orders&partition=x&offset=1",
        f"/messages/view?topic=orders&partition=1&offset={'9' * 5_000}",
        f"/messages/view?topic=orders&partition={'9' * 5_000}&offset=1",
    ],
)
async def test_malformed_requests_are_explained(visitor: Visitor, path: str) -> None:
    answer = await visitor.get(path)
    assert answer.status_code == 400
    assert 'role="alert"' in answer.text


async def test_a_dead_letter_shows_its_reason_and_original_topic(visitor: Visitor) -> None:
    page = (await visitor.get("/dead-letters/billing?order=oldest")).text
    link = page.partition("/dead-letters/billing/letters/")[2].partition('"')[0]
    text = await visitor.page(f"/dead-letters/billing/letters/{link}")
    for expected in (
        "Original topic orders",
        "Given up by billing",
        "Attempts 1",
        '"customer": "Ann"',
        "shop web",
    ):
        assert expected in text, text
    assert "gave no reason" in text or "the card was declined" in text


async def test_dead_letters_are_filtered_by_their_reason(visitor: Visitor) -> None:
    text = await visitor.page("/dead-letters/billing?reason=DECLINED")
    assert text.count("Waiting") == 2


async def test_dead_letters_are_exported_as_lines_of_json(visitor: Visitor) -> None:
    answer = await visitor.get("/dead-letters/billing/export")
    assert "attachment" in answer.headers["content-disposition"]
    lines = answer.text.splitlines()
    assert len(lines) == 3
    assert '"topic":"orders"' in lines[0]
    assert (await visitor.get("/dead-letters/billing/export?topic=other")).text == ""


async def test_an_export_is_of_the_brokers_that_were_checked(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that goes down in between makes it fail, and not shorter."""
    whole, seen = dead_letters.queue, [0]

    async def without_master(cluster: Cluster, group: str) -> dead_letters.DeadLetterQueue | None:
        found = await whole(cluster, group)
        seen[0] += 1
        if found is None or seen[0] == 1:
            return found
        return dead_letters.DeadLetterQueue(group, found.topic, (), ("broker-a",))

    monkeypatch.setattr(dead_letters, "queue", without_master)
    answer = await visitor.get("/dead-letters/billing/export")
    assert len(answer.text.splitlines()) == 3


async def test_a_message_is_shown_with_its_history(visitor: Visitor) -> None:
    page = (await visitor.get("/messages?topic=orders&contains=%22order%22%3A+0")).text
    link = page.partition('href="/messages/view?')[2].partition('"')[0].replace("&amp;", "&")
    text = await visitor.page(f"/messages/view?{link}")
    for expected in (
        "order-0",
        "History",
        "sent by the producer",
        "stored by broker-a",
        "billing",
        '"order": 0',
    ):
        assert expected in text, text
    assert "consumed" in text or "not yet" in text or "dead letter" in text
    body = await visitor.get(f"/messages/body?{link}")
    assert body.content.startswith(b'{"order": 0')
    assert body.headers["content-type"] == "application/octet-stream"


async def test_bytes_are_shown_in_hexadecimal(visitor: Visitor) -> None:
    page = (await visitor.get("/messages?topic=payments")).text
    link = page.partition('href="/messages/view?')[2].partition('"')[0].replace("&amp;", "&")
    assert "00 01 ff 20" in await visitor.page(f"/messages/view?{link}")


async def test_a_search_by_id_finds_the_message(visitor: Visitor) -> None:
    page = await visitor.page("/messages?by=key&topic=orders&key=order-4")
    assert "order-4" in page
    text = await visitor.page("/messages?by=place&topic=orders&partition=0&offset=1")
    assert "1 message" in text
    assert "Nothing was found" in await visitor.page("/messages?by=id&topic=orders&id=" + "0" * 32)


@pytest.mark.parametrize("given", ["C0A80", "no id at all", "7F00000100002A9F0000000000FFFFFF"])
async def test_a_mistyped_id_is_an_error_beside_the_field(visitor: Visitor, given: str) -> None:
    answer = await visitor.get(f"/messages/view?id={given}")
    assert answer.status_code == 404
    assert f'name="id" value="{given}" required aria-invalid="true"' in answer.text
    assert "name the topic as well" in words(answer.text)
    searched = await visitor.get(f"/messages?by=id&id={given}")
    assert searched.status_code == 200
    assert 'aria-describedby="id-problem"' in searched.text


async def test_what_the_cluster_refuses_is_no_fault_of_a_gateway(visitor: Visitor) -> None:
    answer = await visitor.get("/topics/nothing/settings")
    assert answer.status_code == 404
    assert "nothing" in words(answer.text)


async def test_a_mistyped_id_over_tubemq_asks_for_the_topic(tube_visitor: Visitor) -> None:
    answer = await tube_visitor.get("/messages/view?id=x")
    assert answer.status_code == 400
    assert "Name the topic" in words(answer.text)


async def test_names_are_escaped(visitor: Visitor) -> None:
    answer = await visitor.get("/topics?q=%3Cscript%3Ealert(1)%3C/script%3E")
    assert "<script>alert" not in answer.text
    assert "&lt;script&gt;alert" in answer.text


async def test_lists_are_divided_into_parts(node: EmbeddedNode) -> None:
    async with opened(node.rocketmq_url) as cluster:
        for number in range(30):
            await cluster.admin.topics.create(f"zz-many-{number:02}", 1, exist_ok=True)
    async with visiting(node.rocketmq_url) as visitor:
        first = await visitor.page("/topics?q=zz")
        assert "30 topics, page 1 of 2" in first
        assert "zz-many-24" in first
        assert "zz-many-25" not in first
        second = await visitor.page("/topics?q=zz&page=2")
        assert "zz-many-25" in second
        assert "zz-many-24" not in second
        assert "page 2 of 2" in await visitor.page("/topics?q=zz&page=99")


async def test_all_parts_of_a_page_share_the_status_of_the_node(
    node: EmbeddedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node looks at all its groups for it."""
    asked: list[object] = []
    node_status = listing.node_status

    async def counted(cluster: Cluster) -> NodeStatus | None:
        asked.append(cluster)
        return await node_status(cluster)

    for module in (listing, overview):
        monkeypatch.setattr(module, "node_status", counted)
    async with opened(node.url) as cluster:
        facts = Facts(cluster)
        shown, brokers, _ = await asyncio.gather(
            facts.overview(), facts.brokers(), facts.health(filling.GROUP)
        )
        await facts.close()
    assert shown.node is not None
    assert [one.name for one in brokers] == [one.name for one in shown.brokers]
    assert len(asked) == 1


async def test_an_answer_is_shared_for_a_moment(node: EmbeddedNode) -> None:
    async with opened(node.rocketmq_url) as cluster:
        now = 0.0
        facts = Facts(cluster, lambda: now)
        first = await facts.group("billing")
        assert await facts.group("billing") is first
        now = 3.0
        assert await facts.group("billing") is not first
        again = await facts.group("billing")
        facts.forget()
        assert await facts.group("billing") is not again


async def test_an_unreachable_cluster_is_explained() -> None:
    with_nothing = "rocketmq://127.0.0.1:1"
    async with visiting(with_nothing) as visitor:
        answer = await visitor.get("/topics")
        assert answer.status_code == 502
        assert "127.0.0.1:1" in answer.text


async def test_accounts_in_the_options_of_brokers_are_not_denied() -> None:
    with embedded_node(users={"operator": "s3cret-of-one"}) as node:
        signed = {"user": "operator", "password": "s3cret-of-one"}
        for url in (node.rocketmq_url, node.url):
            async with visiting(url, **signed) as visitor:
                text = await visitor.page("/accounts")
                assert "signs in as operator" in text
                assert "no accounts." not in text.replace("files have no accounts.", "")


async def test_the_state_of_a_nodes_own_broker_is_known() -> None:
    with embedded_node(admin_port=0) as node:
        async with visiting(node.url) as visitor:
            listed = (await visitor.page("/brokers")).partition("Version")[2]
            assert "running" in listed
            assert "unknown" not in listed
            assert "unknown" not in (await visitor.page("/brokers/1")).partition("Started")[2]
        async with visiting(node.rocketmq_url) as visitor:
            text = await visitor.page("/brokers/broker-a")
            assert "Accepts messages yes Can be read yes" in text


async def test_a_name_may_have_any_characters(node: EmbeddedNode) -> None:
    """TubeMQ's groups may."""
    name = "a/b <c>%41"
    async with opened(node.url) as cluster:
        await cluster.admin.topics.create("readable", 1, exist_ok=True, wait_ms=30_000)
        await cluster.admin.groups.reset_offsets(name, "readable", "earliest")
    async with visiting(node.url) as visitor:
        listed = (await visitor.get("/groups?q=a/b")).text
        [link] = re.findall(r'href="(/groups/[^"]*b[^"]*)"', listed)
        assert name in await visitor.page(link)
        page = (await visitor.get(f"{link}/reset?topic=readable&to=earliest")).text
        assert f'action="{link}/reset"' in page
        text = await visitor.change(f"{link}/reset", {"topic": "readable", "to": "latest"})
        assert "The offsets were reset." in text
        assert name in text
