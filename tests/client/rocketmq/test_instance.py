from __future__ import annotations

import asyncio
import logging

import pytest

from coherer._client.rocketmq.instance import Instance, Member
from coherer._client.rocketmq.link import Link
from coherer._client.rocketmq.options import ClientOptions
from coherer._wire.rocketmq.bodies import ConsumerData, ProducerData, SubscriptionData
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.command import Command
from coherer.errors import (
    ClosedError,
    ConnectError,
    DisconnectedError,
    RefusedError,
    RequestTimeoutError,
    UnavailableError,
    UsageError,
)
from coherer.rocketmq import connect as connect_rocketmq

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
BEAT = RequestCode.HEART_BEAT
LEAVE = RequestCode.UNREGISTER_CLIENT


class Reading:
    """A `Member`."""

    topics = ("demo",)

    def heartbeat(self) -> ConsumerData:
        return ConsumerData(
            group_name="readers",
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_FIRST_OFFSET",
            subscription_data_set=[SubscriptionData(topic="demo", sub_string="*")],
        )


def instance_of(cluster, consumers=None, **options) -> Instance:
    addresses = options.pop("addresses", (("127.0.0.1", cluster.names.port),))
    options = ClientOptions(addresses=addresses, timeout_ms=2_000, **options)
    return Instance(options, {} if consumers is None else consumers)


@pytest.fixture
def consumers() -> dict[str, Member]:
    return {}


@pytest.fixture
async def instance(cluster, consumers):
    one = instance_of(cluster, consumers)
    await one.start()
    yield one
    await one.close()


@pytest.fixture
async def link(cluster, instance: Instance) -> Link:
    await instance.routes.route("demo")
    return await instance.link(instance.routes.address("broker-a"))


async def test_the_client_id(cluster) -> None:
    one = instance_of(cluster, instance="cons1", unit="u")
    await asyncio.gather(one.start(), one.start())
    assert one.client_id == "127.0.0.1@cons1@u"
    await one.close()
    two, three = instance_of(cluster), instance_of(cluster)
    await two.start()
    await three.start()
    assert two.client_id != three.client_id
    await two.close()
    await three.close()


async def test_a_route(cluster, instance: Instance) -> None:
    route = await instance.routes.route("demo")
    assert [queue.id for queue in route.writable] == [0, 1, 2, 3]
    assert route.brokers == {"broker-a": {0: cluster.brokers["broker-a"].address}}
    assert await instance.routes.route("demo") is route
    assert len(cluster.asked(ROUTE)) == 1
    await asyncio.gather(
        instance.routes.route("demo", fresh=True), instance.routes.route("demo", fresh=True)
    )
    assert len(cluster.asked(ROUTE)) == 2


async def test_watchers(cluster, instance: Instance) -> None:
    told = []
    instance.routes.watch(told.append)
    await instance.routes.route("demo")
    await instance.routes.refresh()
    assert len(told) == 1
    cluster.topics["demo"] = 6
    await instance.routes.refresh()
    assert [len(route.readable) for route in told] == [4, 6]
    del cluster.topics["demo"]  # a look-up that fails changes nothing
    await instance.routes.refresh()
    assert instance.routes.known("demo") is told[-1]
    instance.routes.unwatch(told.append)


async def test_routes_are_refreshed(cluster) -> None:
    one = instance_of(cluster, route_ms=10)
    await one.start()
    await one.routes.route("demo")
    await cluster.until(lambda: len(cluster.asked(ROUTE)) >= 3)
    await one.close()


async def test_a_refresh_stops_without_a_name_server(cluster) -> None:
    cluster.topics.update({"one": 1, "two": 1, "three": 1})
    one = instance_of(cluster)
    await one.start()
    for topic in ("one", "two", "three"):
        await one.routes.route(topic)
    asked = len(cluster.asked(ROUTE))
    cluster.always(ROUTE, lambda asked: asked.channel.close())
    await one.routes.refresh()
    assert len(cluster.asked(ROUTE)) == asked + 1
    assert one.routes.known("three") is not None
    await one.close()


async def test_topics_that_were_only_looked_up_are_not_kept_fresh(cluster) -> None:
    cluster.topics.update({f"topic{number}": 1 for number in range(20)})
    async with connect_rocketmq(cluster.url, route_ms=20) as client:
        for topic in list(cluster.topics):
            assert await client.exists(topic)
        async with client.producer("topic7"):
            asked = len(cluster.asked(ROUTE))
            await cluster.until(lambda: len(cluster.asked(ROUTE)) >= asked + 3)
            again = cluster.asked(ROUTE)[asked:]
            assert {one.fields["topic"] for one in again} == {"topic7"}


async def test_a_new_connection_begins_with_a_heartbeat(cluster, instance: Instance) -> None:
    instance.register_producer("planes")
    await instance.routes.route("demo")
    link = await instance.link(instance.routes.address("broker-a"))
    await link.ask(RequestCode.GET_MAX_OFFSET, timeout_ms=1_000)
    first, second = [asked for asked in cluster.log if asked.broker == "broker-a"]
    assert (first.request.code, second.request.code) == (BEAT, RequestCode.GET_MAX_OFFSET)
    assert first.request.language == "PYTHON"
    beat = cluster.heartbeat()
    assert beat.client_id == instance.client_id
    assert beat.producer_data_set == [
        ProducerData(group_name="CLIENT_INNER_PRODUCER"),
        ProducerData(group_name="planes"),
    ]
    assert instance.versions == {link.server: 399}


async def test_heartbeats_of_a_consumer(cluster, instance: Instance, consumers) -> None:
    consumers["readers"] = member = Reading()
    await instance.routes.route("demo")
    await instance.heartbeat_now()
    assert cluster.heartbeat().consumer_data_set == [member.heartbeat()]
    del consumers["readers"]
    await instance.unregister_consumer("readers")
    [asked] = cluster.asked(LEAVE)
    assert asked.fields == {"clientID": instance.client_id, "consumerGroup": "readers"}


async def test_heartbeats_go_to_masters_or_to_all(cluster, instance: Instance, consumers) -> None:
    await cluster.add("slave")
    slave = cluster.brokers.pop("slave")
    plain = cluster.route

    def with_slave(queues: int):
        route = plain(queues)
        route.broker_datas[0].broker_addrs[1] = slave.address
        return route

    cluster.route = with_slave
    instance.register_producer("planes")
    await instance.routes.route("demo")
    await instance.heartbeat_now()
    assert {asked.broker for asked in cluster.asked(BEAT)} == {"broker-a"}
    consumers["readers"] = Reading()
    await instance.heartbeat_now()
    assert {asked.broker for asked in cluster.asked(BEAT)} == {"broker-a", "slave"}
    await slave.listener.close()


async def test_one_round_of_twenty_is_logged(cluster, instance: Instance, caplog) -> None:
    caplog.set_level(logging.INFO, "coherer._client.rocketmq.instance")
    await instance.routes.route("demo")
    for _ in range(41):
        await instance.heartbeat_now()
    logged = [record for record in caplog.records if record.getMessage().startswith("Heartbeat")]
    first, *others = [record.args[0] for record in logged]  # the first round is drawn
    assert first % 20 == 0
    assert others in ([first + 20], [first + 20, first + 40])


async def test_heartbeats_that_fail_are_logged(cluster, kit, instance: Instance, caplog) -> None:
    cluster.script(BEAT, kit.refuse(1, "not today"))
    await instance.routes.route("demo")
    await instance.heartbeat_now()
    assert "not today" in caplog.text
    assert not instance.versions


async def test_a_broker_that_no_route_names_is_no_warning(
    cluster, kit, instance: Instance, caplog
) -> None:
    caplog.set_level(logging.INFO, "coherer._client.rocketmq.instance")
    cluster.script(BEAT, kit.refuse(1, "not today"))
    await instance.routes.look_up("demo")  # known, but no topic in use is there
    await instance.heartbeat_now()
    [line] = [one for one in caplog.records if "not today" in one.getMessage()]
    assert line.levelno == logging.INFO


async def test_brokers_without_a_route_are_forgotten(cluster, instance: Instance) -> None:
    await instance.routes.route("demo")
    await cluster.add("broker-b")
    await instance.routes.route("demo", fresh=True)
    assert set(instance.routes.masters) == {"broker-a", "broker-b"}
    gone = cluster.brokers.pop("broker-b")
    await instance.routes.route("demo", fresh=True)
    await instance.heartbeat_now()
    assert set(instance.routes.masters) == {"broker-a"}
    assert instance.routes.addresses("broker-b") == {}
    with pytest.raises(UnavailableError, match="broker-b"):
        instance.routes.address("broker-b")
    await gone.listener.close()


async def test_a_broker_that_is_back_is_known_again(cluster, instance: Instance) -> None:
    cluster.topics["other"] = 1
    await instance.routes.route("demo")
    master = instance.routes.address("broker-a")
    plain = cluster.route

    def without_master(queues: int):
        route = plain(queues)
        route.broker_datas[0].broker_addrs[1] = "127.0.0.1:1"
        del route.broker_datas[0].broker_addrs[0]
        return route

    cluster.route = without_master
    await instance.routes.look_up("other")  # while the master is away
    assert instance.routes.addresses("broker-a") == {1: "127.0.0.1:1"}
    cluster.route = plain
    await instance.routes.route("demo", fresh=True)  # as it was before
    assert instance.routes.address("broker-a") == master


async def test_close_unregisters(cluster) -> None:
    one = instance_of(cluster)
    await one.start()
    one.register_producer("planes")
    await one.routes.route("demo")
    await one.link(one.routes.address("broker-a"))
    await one.close()
    await one.close()
    groups = {asked.fields["producerGroup"] for asked in cluster.asked(LEAVE)}
    assert groups == {"planes", "CLIENT_INNER_PRODUCER"}
    with pytest.raises(ClosedError):
        await one.link("127.0.0.1:1")


async def test_the_next_name_server(cluster) -> None:
    dead = (("127.0.0.1", 1), ("127.0.0.1", cluster.names.port))
    for _ in range(4):  # the order is any
        one = instance_of(cluster, addresses=dead)
        await one.start()
        assert (await one.routes.route("demo")).writable
        await one.close()


async def test_a_name_server_that_is_silent(cluster, kit, instance: Instance) -> None:
    cluster.script(ROUTE, kit.hang_up)
    with pytest.raises(DisconnectedError):
        await instance.routes.route("demo")
    assert (await instance.routes.route("demo")).writable


async def test_no_name_server() -> None:
    one = Instance(ClientOptions(addresses=(("127.0.0.1", 1),)), {})
    with pytest.raises(ConnectError):
        await one.start()
    await one.close()


# -- links


async def test_requests_from_a_server(cluster, instance: Instance, link: Link) -> None:
    async def slow(link: Link, request: Command) -> None:
        await asyncio.sleep(0)
        link.respond(request, body=b"slow")

    def failing(link: Link, request: Command) -> None:
        raise RuntimeError("no idea")

    async def failing_late(link: Link, request: Command) -> None:
        raise RuntimeError("no idea later")

    instance.handle(1001, lambda link, request: link.respond(request, remark="at once"))
    instance.handle(1002, slow)
    instance.handle(1003, failing)
    instance.handle(1004, failing_late)
    await link.ask(RequestCode.GET_MAX_OFFSET, timeout_ms=1_000)
    channel = cluster.channel()
    answers = [await channel.call(code) for code in (1001, 1002, 1003, 1004, 1005)]
    assert answers[0].remark == "at once"
    assert bytes(answers[1].body) == b"slow"
    assert [(one.code, one.remark) for one in answers[2:]] == [
        (1, "RuntimeError: no idea"),
        (1, "RuntimeError: no idea later"),
        (3, " request type 1005 not supported"),
    ]
    channel.notify(1005)
    channel.notify(1001)
    assert link.open


async def test_both_sides_number_their_own_requests(cluster, kit, link: Link) -> None:
    held = []
    cluster.script(RequestCode.GET_MAX_OFFSET, held.append)
    future = link.call(RequestCode.GET_MAX_OFFSET, timeout_ms=1_000)
    await cluster.until(lambda: held)
    # The server's own request has the same number, in the end, as ours.
    for _ in range(5):
        assert (await cluster.channel().call(1005)).code == 3
    assert not future.done()
    held[0].answer(fields={"offset": "7"})
    assert (await future).fields == {"offset": "7"}


async def test_refusals_and_silence(cluster, kit, link: Link) -> None:
    code = RequestCode.GET_MAX_OFFSET
    cluster.script(code, kit.refuse(17, "no topic"), kit.silence, kit.hang_up)
    with pytest.raises(RefusedError, match="no topic") as caught:
        await link.ask(code, timeout_ms=1_000)
    assert (caught.value.code, caught.value.server) == (17, link.server)
    with pytest.raises(RequestTimeoutError):
        await link.ask(code, timeout_ms=30)
    with pytest.raises(DisconnectedError, match="may or may not"):
        await link.ask(code, timeout_ms=1_000)
    with pytest.raises(DisconnectedError, match="nothing was sent"):
        link.call(code, timeout_ms=1_000)
    with pytest.raises(DisconnectedError, match="nothing was sent"):
        link.send_oneway(code)


@pytest.mark.parametrize(
    "options",
    [
        {"addresses": ()},
        {"user": "u"},
        {"timeout_ms": 1},
        {"heartbeat_ms": 0},
    ],
)
def test_invalid_options(options) -> None:
    with pytest.raises(UsageError):
        ClientOptions(**{"addresses": (("a", 1),), **options})


def test_options_keep_the_secret() -> None:
    options = ClientOptions(addresses=(("a", 1),), user="u", password="secret")
    assert repr(options) == "<ClientOptions a:1, user u>"
