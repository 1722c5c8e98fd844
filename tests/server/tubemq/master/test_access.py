"""Authentication, with clients that behave like Java's."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from coherer import limits
from coherer._wire.tubemq import credentials
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.codes import ResultCode
from tests.server.master_harness import Broker, Consumer, MasterHarness, Producer

NONCES = itertools.count(1)
CODE = ResultCode


def signed(
    harness: MasterHarness, user: str = "ann", password: str = "secret", age_ms: int = 0
) -> Any:
    info = credentials.authenticate_info(user, password, harness.now_ms - age_ms, next(NONCES))
    return pb.MasterCertificateInfo(authInfo=info)


def token(text: str) -> Any:
    return pb.MasterCertificateInfo(authorizedToken=text)


def refused(answer: Any, code: ResultCode = CODE.CERTIFICATE_FAILURE) -> bool:
    return (answer.success, answer.errCode) == (False, code) and bool(answer.errMsg)


@pytest.fixture
def harness() -> MasterHarness:
    harness = MasterHarness(
        authenticate_producers=True,
        authenticate_consumers=True,
        users={"ann": "secret", "bob": "hidden"},
        token_life_ms=100_000,
    )
    broker = harness.broker()
    harness.topic()
    broker.sync()
    return harness


# -- producers


def test_a_producer_signs_once_and_then_sends_its_token(harness: MasterHarness) -> None:
    producer = Producer(harness)
    producer.auth = signed(harness)
    answer = producer.register()
    producer.auth = token(answer.authorizedInfo.authAuthorizedToken)
    answer = producer.publish("flights")
    assert answer.topicInfos
    assert not answer.HasField("requireAuth")
    assert answer.authorizedInfo.authAuthorizedToken == producer.auth.authorizedToken


def test_a_signature_is_requested_before_a_token_expires(harness: MasterHarness) -> None:
    producer = Producer(harness)
    producer.auth = signed(harness)
    producer.auth = token(producer.register().authorizedInfo.authAuthorizedToken)
    for _ in range(3):
        harness.now_ms += 20_000
        answer = producer.heartbeat()
        assert answer.success
    assert answer.requireAuth
    producer.auth = signed(harness)
    answer = producer.heartbeat()
    assert not answer.HasField("requireAuth")
    producer.auth = token(answer.authorizedInfo.authAuthorizedToken)
    harness.now_ms += 50_000
    assert producer.heartbeat().success
    harness.now_ms += 50_000
    assert refused(producer.heartbeat())


@pytest.mark.parametrize(
    ("user", "password", "age_ms"),
    [
        ("ann", "wrong", 0),
        ("ann", "hidden", 0),
        ("eve", "secret", 0),
        ("eve", "", 0),
        ("", "secret", 0),
        ("ann", "secret", 20_001),
        ("ann", "secret", -20_001),
    ],
)
def test_invalid_signatures(harness: MasterHarness, user: str, password: str, age_ms: int) -> None:
    producer = Producer(harness)
    producer.auth = signed(harness, user, password, age_ms)
    assert refused(producer.register())
    assert refused(producer.close())
    consumer = Consumer(harness)
    consumer.auth = producer.auth
    assert refused(consumer.register())


@pytest.mark.parametrize("auth", [None, token(""), token("x"), token("1.YW5u.00"), token("a.b.c")])
def test_a_missing_signature_is_refused(harness: MasterHarness, auth: Any) -> None:
    producer = Producer(harness)
    producer.auth = auth
    answer = producer.register()
    assert refused(answer)
    assert "authInfo.userName is Blank" in answer.errMsg
    producer.auth = signed(harness)
    producer.register()
    producer.auth = auth
    assert refused(producer.heartbeat())


def test_a_token_is_valid_only_for_its_client(harness: MasterHarness) -> None:
    ann, eve = Producer(harness, "p"), Producer(harness, "eve")
    ann.auth = eve.auth = signed(harness)
    text = ann.register().authorizedInfo.authAuthorizedToken
    eve.register()
    eve.auth = token(text)
    assert refused(eve.heartbeat())
    until, name, seal = text.split(".")
    ann.auth = token(f"{int(until) + 1}.{name}.{seal}")
    assert refused(ann.heartbeat())


@pytest.mark.parametrize("password", [None, "changed"])
def test_a_token_ends_with_its_account_or_password(password: str | None) -> None:
    users = {"ann": "secret", "bob": "hidden"}
    harness = MasterHarness(authenticate_producers=True, authenticate_consumers=True, users=users)
    broker = harness.broker()
    harness.topic()
    broker.sync()
    ann, bob, eve = Producer(harness, "p"), Producer(harness, "q"), Consumer(harness)
    ann.auth = eve.auth = signed(harness)
    bob.auth = signed(harness, "bob", "hidden")
    for client in (ann, bob, eve):
        client.auth = token(client.register().authorizedInfo.authAuthorizedToken)
        assert client.heartbeat().success
    users.pop("ann") if password is None else users.update(ann=password)
    assert refused(ann.heartbeat())
    assert eve.heartbeat().requireAuth
    eve.auth = signed(harness)
    assert refused(eve.heartbeat())
    assert bob.heartbeat().success


def test_a_token_of_an_earlier_run_means_register_again(harness: MasterHarness) -> None:
    producer = Producer(harness)
    producer.auth = signed(harness)
    producer.auth = token(producer.register().authorizedInfo.authAuthorizedToken)
    harness.restart()
    assert refused(producer.heartbeat(), CODE.HB_NO_NODE)


# -- consumers: Java's cannot sign before the master asks, in the answer to a heartbeat


def test_a_consumer_without_a_signature_is_asked_for_one(harness: MasterHarness) -> None:
    consumer = Consumer(harness)
    consumer.auth = token("")
    answer = consumer.register()
    assert answer.success
    assert not answer.HasField("authorizedInfo"), "brokers would serve it with the token"
    assert harness.master.groups() == {}, "it belongs to no group yet"
    answer = consumer.heartbeat()
    assert answer.success
    assert answer.requireAuth
    assert not answer.HasField("event")
    consumer.auth = signed(harness)
    answer = consumer.heartbeat()
    assert answer.event.opType == 10
    assert not answer.HasField("requireAuth")
    consumer.auth = token(answer.authorizedInfo.authAuthorizedToken)
    assert consumer.heartbeat().success
    assert consumer.numbers == [0, 1, 2, 3]


def test_a_consumer_may_sign_at_once(harness: MasterHarness) -> None:
    consumer = Consumer(harness)
    consumer.auth = signed(harness)
    consumer.auth = token(consumer.register().authorizedInfo.authAuthorizedToken)
    assert consumer.heartbeat().event.opType == 10
    assert consumer.close().success
    assert harness.master.groups() == {}


def test_a_member_without_a_token_is_asked_to_sign_again(harness: MasterHarness) -> None:
    consumer = Consumer(harness)
    consumer.auth = signed(harness)
    consumer.register()
    consumer.auth = token("")
    answer = consumer.heartbeat()
    assert (answer.success, answer.requireAuth) == (True, True)
    assert not answer.HasField("event")
    harness.wait(30_000)
    assert refused(consumer.heartbeat(), CODE.HB_NO_NODE), (
        "unsigned heartbeats do not keep it alive"
    )


def test_a_wrong_signature_is_refused_in_heartbeats_too(harness: MasterHarness) -> None:
    consumer = Consumer(harness)
    consumer.register()
    consumer.heartbeat()
    consumer.auth = signed(harness, "ann", "wrong")
    assert refused(consumer.heartbeat())
    assert harness.master.groups() == {}


def test_unsigned_registrations_expire(harness: MasterHarness) -> None:
    consumer = Consumer(harness)
    assert refused(consumer.heartbeat(), CODE.HB_NO_NODE)
    consumer.register()
    harness.wait(29_999)
    assert consumer.heartbeat().requireAuth
    harness.wait(30_000)
    assert refused(consumer.heartbeat(), CODE.HB_NO_NODE)


def test_a_mismatch_is_reported_when_the_consumer_registers_again(harness: MasterHarness) -> None:
    first, second = Consumer(harness, "a"), Consumer(harness, "b")
    second.register(topicCondition=["flights#UA"])
    first.auth = signed(harness)
    first.register()
    second.auth = signed(harness)
    assert refused(second.heartbeat(), CODE.HB_NO_NODE)
    answer = second.register(topicCondition=["flights#UA"])
    assert refused(answer, CODE.CLIENT_INCONSISTENT_FILTERSET)


def test_an_unsigned_close_only_drops_a_deferred_registration(harness: MasterHarness) -> None:
    consumer = Consumer(harness)
    consumer.register()
    assert consumer.close().success
    assert refused(consumer.heartbeat(), CODE.HB_NO_NODE)
    consumer.auth = signed(harness)
    consumer.register()
    consumer.auth = None
    consumer.close()
    assert harness.master.groups() == {"g": ["c"]}


def test_unsigned_registrations_are_limited(
    harness: MasterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UNSIGNED_REGISTRATIONS_MAX", 2)
    for name in "ab":
        assert Consumer(harness, name).register().success
    assert refused(Consumer(harness, "c").register(), CODE.SERVICE_UNAVAILABLE)
    assert Consumer(harness, "a").register().success
    long = ["x" * limits.UNSIGNED_REGISTRATION_BYTES_MAX]
    assert refused(Consumer(harness, "a").register(topicCondition=long))


def test_clients_beyond_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENTS_MAX", 1)
    harness = MasterHarness()
    broker = harness.broker()
    harness.topic()
    broker.sync()
    assert Producer(harness, "a").register().success
    assert refused(Producer(harness, "b").register(), CODE.SERVICE_UNAVAILABLE)
    assert Consumer(harness, "a").register().success
    assert refused(Consumer(harness, "b").register(), CODE.SERVICE_UNAVAILABLE)


# -- brokers


def test_brokers_sign_everything() -> None:
    harness = MasterHarness(authenticate_brokers=True, broker_user="broker", broker_password="pw")
    assert refused(Broker(harness, 1).register())
    wrong = signed(harness, "broker", "other")
    assert refused(Broker(harness, 1, authInfo=wrong).register())
    right = signed(harness, "broker", "pw")
    broker = Broker(harness, 1, authInfo=right)
    assert broker.register().success
    assert refused(broker.heartbeat())
    assert refused(broker.close())
    answer = harness.ask(9, pb.CloseRequestB2M(brokerId="1", authInfo=right))
    assert answer.success


def test_visit_tokens_cannot_be_guessed(harness: MasterHarness) -> None:
    tokens = harness.master.state.visit_tokens
    seen = {tokens.valid}
    for _ in range(3):
        harness.wait(300_000)
        seen.update((tokens.valid, tokens.fresh))
    assert len(seen) >= 4
    assert all(0 < token < 2**62 and abs(token - harness.now_ms) > 2**40 for token in seen)


def test_brokers_get_the_access_checks(harness: MasterHarness) -> None:
    switches = Broker(harness, 2, host="10.0.0.2").register().enableBrokerInfo
    assert switches.enableProduceAuthenticate
    assert switches.enableVisitTokenCheck
    assert not switches.enableConsumeAuthenticate, "Java's consumers could take no partition"
