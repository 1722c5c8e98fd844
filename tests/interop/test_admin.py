"""Our administration client with {our, Java} master and broker."""

from __future__ import annotations

import pytest
from test_matrix import drain, numbered, until

from coherer._client.tubemq.administration.admin import Admin
from coherer.admin import Group
from coherer.errors import RefusedError, UsageError
from coherer.testing import async_embedded_node
from coherer.tubemq import connect as connect_tubemq
from tests.interop.peers.clients import closing
from tests.interop.peers.java import HOST
from tests.interop.peers.runs import At, scenario
from tests.interop.peers.site import PAIRS


def admin_of(at: At) -> Admin:
    return Admin(f"http://{HOST}:{at.deployed.web.port}", at.deployed.web.token)


@scenario(PAIRS, partitions=2)
async def test_admin_sees_where_a_group_is_and_moves_it(at: At) -> None:
    """Members, owners, committed offsets and lag; then the group reads everything again."""
    admin, group = admin_of(at), at.group()
    producer = await at.clients.producer(at.master, [at.topic])
    async with closing(producer):
        for message in numbered(at.topic, range(6)):
            await producer.send(message)
    for partition in await admin.topics.partitions(at.topic):
        assert partition.min_offset == 0
        assert partition.max_offset is not None
        assert partition.max_offset > 0

    async def caught_up() -> Group | None:
        found = await admin.groups.list(group)
        return found[0] if found and found[0].lag == 0 else None

    puller = await at.clients.puller(at.master, group, {at.topic: []})
    async with closing(puller):
        await drain(puller, 6)
        await until(caught_up, "the group's lag is 0")
        state = await caught_up()
        assert state is not None
        assert (len(state.members), state.topics) == (1, (at.topic,))
        assert not {broker.broker_id for broker in at.deployed.brokers} & set(state.silent)
        assert {p.owner for p in state.partitions} == {state.members[0].id}
        assert all(p.committed == p.max_offset for p in state.partitions)

    offsets = await admin.groups.reset_offsets(group, at.topic, "earliest")
    assert set(offsets.values()) == {0}
    puller = await at.clients.puller(at.master, group, {at.topic: []})
    async with closing(puller):
        packages = await drain(puller, 6)
    bodies = [message.body for package in packages for message in package.messages]
    assert sorted(bodies) == [b"n%06d" % number for number in range(6)]


@scenario(PAIRS)
async def test_admin_creates_and_deletes(at: At) -> None:
    """What is there is refused or pardoned; what is deleted is gone, also if nobody used it."""
    admin, name = admin_of(at), f"{at.topic}_new"
    brokers = [broker.broker_id for broker in at.deployed.brokers]
    await admin.topics.create(name, 3, brokers)
    with pytest.raises(RefusedError) as caught:
        await admin.topics.create(name, 3, brokers)
    assert caught.value.code == 402
    await admin.topics.create(name, 3, brokers, exist_ok=True)
    (topic,) = await admin.topics.list(name)
    assert topic.brokers == {str(number): 3 for number in brokers}
    await admin.topics.delete(name)
    assert await admin.topics.list(name) == []
    known = {broker.id: broker for broker in await admin.brokers.list()}
    assert all(known[number].status == "running" for number in brokers)


@scenario(PAIRS)
async def test_a_change_goes_only_to_the_cluster_of_the_url(at: At) -> None:
    """Java's masters do not say who they are; they are known by the brokers that they name."""
    web, name = at.deployed.web, f"{at.topic}_proven"
    url = f"http://{HOST}:{web.port}"
    brokers = [broker.broker_id for broker in at.deployed.brokers]
    async with connect_tubemq(f"tubemq://{at.master}", admin=url) as client:
        admin = client.admin(web.token)
        await admin.topics.create(name, 1, brokers)
        async with async_embedded_node() as other:
            other.create_topic(name)
            async with connect_tubemq(other.url, admin=url) as wrong:
                with pytest.raises(UsageError, match="does not prove that it belongs"):
                    await wrong.admin(web.token).topics.delete(name)
            stray = f"http://{HOST}:{other.admin_port}"
            async with connect_tubemq(f"tubemq://{at.master}", admin=stray) as wrong:
                with pytest.raises(UsageError, match="does not prove that it belongs"):
                    await wrong.admin().topics.delete(name)
            assert name in other.topics()
        assert [topic.name for topic in await admin.topics.list(name)] == [name]
        await admin.topics.delete(name)
        assert await admin.topics.list(name) == []
