"""Authorization tokens and credentials at the broker."""

from __future__ import annotations

from coherer._server.tubemq.broker.broker import Broker
from coherer._wire.tubemq import messages as pb
from coherer.testing import ManualClock
from tests.server.broker_stage import Peer


def authorized(token: int, text: str = "") -> pb.AuthorizedInfo:
    return pb.AuthorizedInfo(visitAuthorizedToken=token, authAuthorizedToken=text)


async def test_the_visit_token(peer: Peer, broker: Broker, clock: ManualClock) -> None:
    access = broker.state.access
    access.in_contact, access.registered_ms = True, clock.now_ms()
    access.switch(pb.EnableBrokerFunInfo(enableVisitTokenCheck=True))
    access.learn("1,2")
    broker.state.changed()
    assert (await peer.send()).success, "just registered"
    clock.advance(120_000)
    assert (await peer.send()).errCode == 415
    assert (await peer.send(clientId="")).errCode == 415
    assert peer.register(clientId="").errCode == 415
    assert peer.beat(clientId="").errCode == 415
    for token in (1, 2):
        for _ in range(3):
            assert (await peer.send(authInfo=authorized(token))).success
        assert (await peer.send()).errCode == 415
        assert peer.register(authInfo=authorized(token)).success
        assert peer.beat(authInfo=authorized(token)).success
    for token in range(3, 8):
        assert access.learn(f"{token},{token + 1}")
        broker.state.changed()
    assert (await peer.send(authInfo=authorized(2))).errCode == 415, "the last six are kept"
    assert (await peer.send(authInfo=authorized(3))).success
    access.learn("nonsense, ")
    access.in_contact = False
    assert (await peer.send()).success, "the broker may have missed a token"


async def test_authentication(peer: Peer, broker: Broker) -> None:
    access = broker.state.access
    access.switch(pb.EnableBrokerFunInfo(enableProduceAuthenticate=True))
    broker.state.changed()
    assert (await peer.send(authInfo=authorized(-2, " "))).errCode == 415
    assert (await peer.send(authInfo=authorized(-2, "token"))).success
    assert peer.register().success
    access.switch(pb.EnableBrokerFunInfo(enableConsumeAuthenticate=True))
    broker.state.changed()
    assert (await peer.send()).success
    assert peer.register().errCode == 415
    assert peer.unregister().errCode == 415
    assert peer.beat().errCode == 415
    assert peer.get(partitionId=1).errCode == 411, "relies on the registration"
    assert peer.register(authInfo=authorized(-2, "user 1 2 signature")).success
