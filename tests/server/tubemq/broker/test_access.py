"""Authorization tokens and authorizations at the broker."""

from __future__ import annotations

from coherer._server.tubemq.broker.broker import Broker
from coherer._wire.tubemq import messages as pb
from coherer.testing import ManualClock
from tests.server.broker_harness import BrokerClient


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
