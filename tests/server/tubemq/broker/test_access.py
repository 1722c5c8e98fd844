"""Authorization tokens and authorizations at the broker."""

from __future__ import annotations

import pytest

from coherer._server.tubemq.broker.broker import Broker
from coherer._server.tubemq.broker.consumers import PROOF_MS
from coherer._wire.tubemq import messages as pb
from coherer.testing import ManualClock
from tests.server.broker_harness import BrokerClient, bodies


def authorized(token: int, text: str = "") -> pb.AuthorizedInfo:
    return pb.AuthorizedInfo(visitAuthorizedToken=token, authAuthorizedToken=text)


async def test_the_visit_token(client: BrokerClient, broker: Broker, clock: ManualClock) -> None:
    access = broker.state.access
    access.in_contact, access.registered_ms = True, clock.now_ms()
    access.switch(pb.EnableBrokerFunInfo(enableVisitTokenCheck=True))
    access.add_tokens("1,2")
    broker.state.changed()
    assert (await client.send()).success, "just registered"
    clock.advance(120_000)
    assert (await client.send()).errCode == 415
    assert (await client.send(clientId="")).errCode == 415
    assert client.register(clientId="").errCode == 415
    assert client.heartbeat(clientId="").errCode == 415
    for token in (1, 2):
        for _ in range(3):
            assert (await client.send(authInfo=authorized(token))).success
        assert (await client.send()).errCode == 415
        assert client.register(authInfo=authorized(token)).success
        assert client.heartbeat(authInfo=authorized(token)).success
    for token in range(3, 8):
        assert access.add_tokens(f"{token},{token + 1}")
        broker.state.changed()
    assert (await client.send(authInfo=authorized(2))).errCode == 415, "the last six are kept"
    assert (await client.send(authInfo=authorized(3))).success
    access.add_tokens("nonsense, ")
    access.in_contact = False
    assert (await client.send()).success, "the broker may have missed a token"


async def test_a_client_whose_account_was_removed_is_not_served_for_long(
    client: BrokerClient, broker: Broker
) -> None:
    access = broker.state.access
    access.switch(pb.EnableBrokerFunInfo(enableVisitTokenCheck=True, accountsRequired=True))
    for token in (1, 2):
        access.add_tokens(f"{token},{token + 1}")
        broker.state.changed()
        assert (await client.send(authInfo=authorized(1))).success
    access.add_tokens("3,4")
    broker.state.changed()
    assert (await client.send(authInfo=authorized(1))).errCode == 415
    assert client.register(authInfo=authorized(1)).errCode == 415
    assert (await client.send(authInfo=authorized(2))).success, "perhaps it sends no heartbeat yet"


@pytest.fixture
def with_accounts(broker: Broker) -> Broker:
    """A broker of a cluster with accounts."""
    access = broker.state.access
    access.switch(pb.EnableBrokerFunInfo(enableVisitTokenCheck=True, accountsRequired=True))
    access.add_tokens("1,2")
    broker.state.changed()
    return broker


async def test_a_consumer_without_a_token_cannot_read_as_another_one(
    client: BrokerClient, with_accounts: Broker
) -> None:
    """Gets and commits have no field for a token, and nobody tells who holds a partition."""
    await client.send(authInfo=authorized(1))
    assert client.register(authInfo=authorized(1)).success
    stranger = BrokerClient(with_accounts)
    for answer in (stranger.get(clientId="x"), stranger.commit(clientId="x")):
        assert not answer.success
        assert "c1" not in answer.errMsg
    stranger.connection.peer_host = "10.0.0.66"
    assert stranger.get().errCode == 411
    assert stranger.commit().errCode == 401
    assert stranger.heartbeat("1:demo:0").errCode == 415
    assert bodies(client.get()) == [b"hello"]
    assert stranger.commit().errCode == 401
    assert client.commit().currOffset == 1


async def test_a_consumer_may_come_from_another_address(
    client: BrokerClient, with_accounts: Broker
) -> None:
    await client.send(authInfo=authorized(1))
    client.register(authInfo=authorized(1))
    client.connection.peer_host = "10.0.0.10"
    assert client.get().errCode == 411
    address = with_accounts.state.address
    answer = client.heartbeat(f"{address}#demo:0", authInfo=authorized(1))
    assert (answer.success, list(answer.failureInfo)) == (True, [])
    assert bodies(client.get()) == [b"hello"]


async def test_gets_alone_do_not_keep_a_partition(
    client: BrokerClient, with_accounts: Broker, clock: ManualClock
) -> None:
    """The consumer of a removed account has no valid token, and could read on for ever."""
    client.register(authInfo=authorized(1))
    for _ in range(2):
        clock.advance(PROOF_MS // 2 - 1)
        await client.send(authInfo=authorized(1))
        assert client.get().success
    clock.advance(2)
    assert client.get().errCode == 411
    assert client.commit().errCode == 401
    assert client.register(authInfo=authorized(1)).success
    clock.advance(PROOF_MS // 2)
    client.heartbeat(f"{with_accounts.state.address}#demo:0", authInfo=authorized(2))
    clock.advance(PROOF_MS // 2 + 1)
    await client.send(authInfo=authorized(2))
    assert client.get().success


async def test_authentication(client: BrokerClient, broker: Broker) -> None:
    access = broker.state.access
    access.switch(pb.EnableBrokerFunInfo(enableProduceAuthenticate=True))
    broker.state.changed()
    assert (await client.send(authInfo=authorized(-2, " "))).errCode == 415
    assert (await client.send(authInfo=authorized(-2, "token"))).success
    assert client.register().success
    access.switch(pb.EnableBrokerFunInfo(enableConsumeAuthenticate=True))
    broker.state.changed()
    assert (await client.send()).success
    assert client.register().errCode == 415
    assert client.unregister().errCode == 415
    assert client.heartbeat().errCode == 415
    assert client.get(partitionId=1).errCode == 411, "get relies on the registration"
    assert client.register(authInfo=authorized(-2, "user 1 2 signature")).success
