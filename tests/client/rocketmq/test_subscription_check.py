"""Members of one group with different topics, filters that are cut, accounts that are refused."""

from __future__ import annotations

import logging

import pytest

import coherer
from coherer._client.rocketmq.consuming import assigned_queue, membership
from coherer._wire.rocketmq.bodies import RunningInfo, SubscriptionData
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.subscription import Sql92
from coherer.errors import AuthorizationError, RefusedError
from coherer.rocketmq import connect as connect_rocketmq
from coherer.testing import async_embedded_node
from tests.client.rocket_broker import PULL, ZERO, reading
from tests.client.rocket_scenario import Scenario, scenario_at, until

ASK = RequestCode.GET_CONSUMER_RUNNING_INFO
pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
async def scenario(coherer_rocketmq_url: str):
    async with scenario_at(coherer_rocketmq_url) as one:
        yield one


async def test_members_with_different_topics_name_each_other(scenario: Scenario, caplog) -> None:
    client, other = scenario.client(), scenario.client()
    await scenario.make(client, 4)
    second = f"{scenario.topic}-2"
    await client.admin().topics.create(second, 4)
    options = {"rebalance_ms": 100}
    async with client.consumer(scenario.group, scenario.topic, **options) as one:
        async with other.consumer(scenario.group, second, **options) as two:
            await until(lambda: one.errors and two.errors)
            group = await client.admin().groups.consumers(scenario.group)
            ids = {member.id for member in group.members}
            assert len(ids) == 2
            for text in (str(one.errors[0]), str(two.errors[0])):
                assert all(part in text for part in {*ids, scenario.topic, second, scenario.group})
                assert "same topics" in text
        await until(lambda: not one.errors)
    node = [one for one in caplog.records if one.name == "coherer._rules.rocketmq.clients"]
    assert any(all(one in record.getMessage() for one in ids) for record in node)


async def test_equal_members_ask_each_other_once(cluster, shelf, client) -> None:
    cluster.always(
        ASK,
        lambda asked: asked.answer(
            body=RunningInfo(
                subscription_set=[
                    SubscriptionData(topic="demo", sub_string="b||a", tags_set=["b", "a"]),
                    SubscriptionData(topic="%RETRY%readers", sub_string="*"),
                ]
            ).encode()
        ),
    )
    shelf.others = ["a-first@1", "b-next@2"]
    filters = {"demo": ["a", "b"]}
    async with client.consumer("readers", filters, rebalance_ms=10) as consumer:
        before = len(cluster.asked(RequestCode.GET_CONSUMER_LIST_BY_GROUP))
        await cluster.until(
            lambda: len(cluster.asked(RequestCode.GET_CONSUMER_LIST_BY_GROUP)) > before + 5
        )
        assert consumer.errors == []
    [asked] = cluster.asked(ASK)
    assert (asked.fields["clientId"], asked.fields["jstackEnable"]) == ("a-first@1", "false")


async def test_a_member_that_does_not_answer_is_no_error(cluster, shelf, client, kit) -> None:
    cluster.always(ASK, kit.refuse(1))
    shelf.others = ["a-first@1"]
    async with reading(client, rebalance_ms=10) as consumer:
        await cluster.until(lambda: len(cluster.asked(ASK)) > 1)
        assert consumer.errors == []


async def test_text_after_an_expression_is_warned_of(cluster, shelf, client, caplog) -> None:
    async with client.consumer("readers", {"demo": Sql92("a = 1 then more")}):
        pass
    [line] = [one.getMessage() for one in caplog.records if one.name == membership.__name__]
    assert "ignores the end" in line
    assert "'then more'" in line
    caplog.clear()
    for fits in ("a = 1 AND b IS NULL", "a CONTAINS"):
        cluster.script(RequestCode.CHECK_CLIENT_CONFIG, lambda asked: asked.answer())
        async with client.pull_consumer("readers", {"demo": Sql92(fits)}):
            pass
    assert len([one for one in caplog.records if one.name == membership.__name__]) == 1


async def test_an_illegal_expression_of_assigned_queues_is_refused(
    cluster, shelf, client, kit
) -> None:
    cluster.script(RequestCode.CHECK_CLIENT_CONFIG, kit.refuse(23))
    async with client.pull_consumer("readers") as puller:
        with pytest.raises(RefusedError) as caught:
            await puller.assign([ZERO], Sql92("a ="))
        assert (caught.value.code, caught.value.topic) == (23, "demo")
        assert puller.assignment == frozenset()
        await puller.assign([ZERO])
        assert puller.assignment == {ZERO}


async def test_a_broker_that_never_learns_the_filter_is_warned_of(
    cluster, shelf, client, kit, caplog, monkeypatch
) -> None:
    monkeypatch.setattr(assigned_queue, "PAUSE_MS", 1)
    cluster.always(PULL, kit.refuse(27))
    async with reading(client) as consumer:
        await cluster.until(lambda: len(cluster.asked(PULL)) > 3 * assigned_queue.UNKNOWN_WARNED)
        assert {error.code for error in consumer.errors} == {27}
    lines = [one for one in caplog.records if one.name == assigned_queue.__name__]
    assert lines
    assert all("code 27" in line.getMessage() for line in lines)


async def test_a_topic_that_cannot_be_looked_up_is_not_called_missing(
    cluster, shelf, client, kit, caplog
) -> None:
    cluster.script(RequestCode.GET_ROUTEINFO_BY_TOPIC, kit.refuse(2))
    async with reading(client):
        pass
    [line, *_] = [one.getMessage() for one in caplog.records if one.name == membership.__name__]
    assert "Topic demo cannot be looked up yet" in line


@pytest.mark.parametrize("account", [("ann", "guess"), ("bob", "secret"), (None, None)])
async def test_a_wrong_account_is_refused_at_the_start(tmp_path, account) -> None:
    user, password = account
    async with async_embedded_node(tmp_path, users={"ann": "secret"}) as node:
        async with coherer.connect(node.rocketmq_url, user="ann", password="secret") as client:
            await client.admin().topics.create("demo", 1)
        async with connect_rocketmq(node.rocketmq_url, user=user, password=password) as client:
            for consumer in (
                client.consumer("readers", "demo"),
                client.pull_consumer("readers", "demo"),
            ):
                with pytest.raises(AuthorizationError) as caught:
                    await consumer.start()
                assert caught.value.server is not None
                assert (user or "No accessKey") in caught.value.text
                assert "user and password" in caught.value.hint


async def test_brokers_that_refuse_the_account_are_an_error_at_the_start(
    cluster, shelf, client, kit
) -> None:
    """Java's name server serves routes without a signature; its broker refuses the heartbeat."""
    text = "org.apache.rocketmq.acl.common.AclException: Check signature failed for accessKey=ann"
    cluster.always(RequestCode.HEART_BEAT, kit.refuse(1, text))
    with pytest.raises(AuthorizationError, match="accessKey=ann") as caught:
        await reading(client).start()
    assert caught.value.server == cluster.brokers["broker-a"].address


async def test_one_broker_that_refuses_the_account_does_not_stop_the_others(
    cluster2, client2, kit, caplog
) -> None:
    caplog.set_level(logging.ERROR)
    text = "org.apache.rocketmq.acl.common.AclException: no"
    cluster2.script(RequestCode.HEART_BEAT, kit.refuse(1, text), kit.refuse(1, text))

    def only_of_a(asked) -> None:
        if asked.broker == "broker-a":
            asked.answer(1, text)
        else:
            asked.answer()

    cluster2.scripts.clear()
    cluster2.always(RequestCode.HEART_BEAT, only_of_a)
    async with client2.consumer("readers", "demo") as consumer:
        assert [type(error) for error in consumer.errors] == [AuthorizationError]
