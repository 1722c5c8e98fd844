from __future__ import annotations

import pytest

from coherer._client.tubemq.quality import Quality, QualityRules, poor

RULES = QualityRules()


def test_a_broker_that_refuses_service_rests() -> None:
    quality = Quality()
    quality.refused_service(2, now_ms=1000)
    assert quality.usable([1, 2, 3], now_ms=1000) == [1, 3]
    assert quality.usable([1, 2, 3], now_ms=1000 + RULES.unavailable_ms - 1) == [1, 3]
    assert quality.usable([1, 2, 3], now_ms=1000 + RULES.unavailable_ms) == [1, 2, 3]


def known(quality: Quality, count: int) -> list[int]:
    brokers = list(range(1, count + 1))
    for broker in brokers:
        quality.tally(broker)
    return brokers


def test_an_address_that_cannot_be_reached_rests_for_half_an_hour() -> None:
    quality = Quality()
    brokers = known(quality, 4)
    for _ in range(RULES.connect_failures_max):
        quality.connect_failed(1, now_ms=0)
    assert quality.usable(brokers, now_ms=0) == brokers
    quality.connect_failed(1, now_ms=10)
    assert quality.usable(brokers, now_ms=10) == [2, 3, 4]
    assert quality.usable(brokers, now_ms=10 + RULES.unreachable_ms) == brokers


def test_failures_far_apart_do_not_add_up() -> None:
    quality = Quality()
    brokers = known(quality, 4)
    for count in range(20):
        quality.connect_failed(1, now_ms=count * 15_000)
    assert quality.usable(brokers, now_ms=300_000) == brokers


def test_a_connection_forgives_failures() -> None:
    quality = Quality()
    brokers = known(quality, 4)
    for _ in range(RULES.connect_failures_max + 1):
        quality.connect_failed(1, now_ms=0)
    quality.connected(1)
    assert quality.usable(brokers, now_ms=0) == brokers


def test_only_a_part_of_the_addresses_may_rest() -> None:
    quality = Quality()
    brokers = known(quality, 4)  # 0.3 of 4 is 1
    for broker in (1, 2, 3):
        for _ in range(RULES.connect_failures_max + 1):
            quality.connect_failed(broker, now_ms=0)
    assert quality.usable(brokers, now_ms=0) == [2, 3, 4]


def test_a_single_broker_is_never_given_up_as_unreachable() -> None:
    quality = Quality()
    known(quality, 1)
    for _ in range(100):
        quality.connect_failed(1, now_ms=0)
    assert quality.usable([1], now_ms=0) == [1]


def test_a_broker_with_too_many_sends_outstanding_is_left_out() -> None:
    quality = Quality()
    quality.tally(1).sent = RULES.outstanding_max + 1
    assert quality.usable([1, 2], now_ms=0) == [2]
    quality.tally(1).finished = 1
    assert quality.usable([1, 2], now_ms=0) == [1, 2]


def test_what_is_gone_is_forgotten() -> None:
    quality = Quality()
    quality.refused_service(1, now_ms=0)
    quality.forget([2])
    assert quality.usable([1, 2], now_ms=1) == [1, 2]


def sends(quality: Quality, broker: int, sent: int, succeeded: int) -> None:
    tally = quality.tally(broker)
    tally.sent += sent
    tally.finished += sent
    tally.succeeded += succeeded


def test_a_broker_that_does_far_worse_than_its_peers_rests_until_the_next_check() -> None:
    quality = Quality()
    brokers = known(quality, 5)
    quality.check(now_ms=0)
    for broker in brokers:
        sends(quality, broker, 1000, 1 if broker == 4 else 1000)
    quality.check(now_ms=RULES.poor_check_ms - 1)
    assert quality.usable(brokers, now_ms=0) == brokers
    quality.check(now_ms=RULES.poor_check_ms)
    assert quality.usable(brokers, now_ms=0) == [1, 2, 3, 5]
    for broker in (1, 2, 3, 5):
        sends(quality, broker, 1000, 1000)
    quality.check(now_ms=2 * RULES.poor_check_ms)
    assert quality.usable(brokers, now_ms=0) == brokers


def test_three_brokers_are_too_few_to_leave_one_out() -> None:
    quality = Quality()
    brokers = known(quality, 3)
    quality.check(now_ms=0)
    for broker in brokers:
        sends(quality, broker, 1000, 0 if broker == 2 else 1000)
    quality.check(now_ms=RULES.poor_check_ms)
    assert quality.usable(brokers, now_ms=0) == brokers


@pytest.mark.parametrize(
    ("news", "room", "expected"),
    [
        ([], 3, []),
        ([(0, 100, 1)], 1, []),  # alone: nobody to compare with
        ([(100, 100, 1), (0, 100, 2)], 1, [2]),
        ([(100, 100, 1), (0, 20, 2)], 1, []),  # too few sends to judge
        ([(100, 100, 1), (11, 100, 2)], 1, []),  # bad, but a tenth got through
        ([(0, 100, 1), (0, 100, 2), *((100, 100, n) for n in range(3, 14))], 1, [1]),
        ([(0, 100, 1), (0, 100, 2), *((100, 100, n) for n in range(3, 14))], 0, []),
    ],
)
def test_who_is_poor(news: list[tuple[int, int, int]], room: int, expected: list[int]) -> None:
    assert poor(news, room) == expected
