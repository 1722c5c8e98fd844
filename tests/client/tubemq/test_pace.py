from __future__ import annotations

from types import SimpleNamespace

import pytest

from coherer._client.tubemq.flow_control import MINUTE_MS, SLICE_MS, FlowControl
from coherer._wire.tubemq.flow import FlowRules

NOON = 1_700_020_800_000  # 2023-11-15 12:00 in GMT+8
NIGHT = NOON + 12 * 3600 * 1000
DATA = (
    '[{"type":0,"rule":[{"start":"08:00","end":"17:30","dltInM":1024,"limitInM":12,'
    '"freqInMs":1000}]}]'
)
EMPTY = '[{"type":1,"rule":[{"zeroCnt":3,"freqInMs":300},{"zeroCnt":8,"freqInMs":1000}]}]'
LOW = '[{"type":3,"rule":[{"normFreqInMs":5,"filterFreqInMs":100,"minDataFilterFreqInMs":400}]}]'
MIB = 1024 * 1024


def rules(group: str = " ", default: str = " ") -> SimpleNamespace:
    return SimpleNamespace(
        group_rules=FlowRules.parse(group), default_rules=FlowRules.parse(default)
    )


def package(size_bytes: int = 1000, backlog: int = 10**9, slow: bool = False) -> SimpleNamespace:
    return SimpleNamespace(size_bytes=size_bytes, backlog_bytes=backlog, require_slow=slow)


def test_without_rules_nothing_rests_longer_than_it_must() -> None:
    pace = FlowControl(rules(), filtered=False)
    assert pace.delivered(package(100 * MIB), NOON) == 0
    assert pace.empty(400, NOON) == 400
    assert pace.refused(2000, NOON) == 2000
    assert not pace.limits_itself(NOON)


def test_a_data_limit_for_five_seconds_and_for_a_minute() -> None:
    pace = FlowControl(rules(DATA), filtered=False)  # 12 MiB a minute, 1 MiB in five seconds
    assert pace.delivered(package(1), NOON) == 0  # learns the backlog
    now = NOON + MINUTE_MS
    assert pace.delivered(package(MIB - 1), now) == 0
    assert pace.delivered(package(1), now + 1) == 1000
    now += SLICE_MS
    assert pace.delivered(package(MIB - 1), now) == 0
    for count in range(1, 11):
        assert pace.delivered(package(MIB - 1), now + count * SLICE_MS) == 0
    assert pace.delivered(package(20), now + 10 * SLICE_MS) == 1000  # the minute is used up
    assert pace.delivered(package(1), now + 11 * SLICE_MS) == 0


def test_no_data_limit_at_night_or_without_a_backlog() -> None:
    pace = FlowControl(rules(DATA), filtered=False)
    pace.delivered(package(1), NIGHT)
    assert pace.delivered(package(100 * MIB), NIGHT + MINUTE_MS) == 0
    pace = FlowControl(rules(DATA), filtered=False)
    pace.delivered(package(1, backlog=500), NOON)
    assert pace.delivered(package(100 * MIB, backlog=500), NOON + MINUTE_MS) == 0


def test_while_the_backlog_is_unknown_a_guess_counts() -> None:
    pace = FlowControl(rules(DATA), filtered=False)
    assert pace.delivered(package(2**31 // 12 - 1, backlog=-1), NOON) == 0
    assert pace.delivered(package(1, backlog=-1), NOON) == 20


def test_the_group_s_limit_counts_before_the_default_one() -> None:
    other = DATA.replace('"limitInM":12', '"limitInM":24').replace("1000}", "700}")
    pace = FlowControl(rules(other, DATA), filtered=False)
    pace.delivered(package(1), NOON)
    assert pace.delivered(package(MIB), NOON + MINUTE_MS) == 0
    assert pace.delivered(package(MIB), NOON + MINUTE_MS) == 700
    assert pace.limits_itself(NOON)
    assert not FlowControl(rules(" ", DATA), filtered=False).limits_itself(NOON)


def test_whether_a_group_limits_itself_is_asked_every_ten_seconds() -> None:
    changing = rules()
    pace = FlowControl(changing, filtered=False)
    assert not pace.limits_itself(NOON)
    changing.group_rules = FlowRules.parse(DATA)
    assert not pace.limits_itself(NOON + 9_999)
    assert pace.limits_itself(NOON + 10_000)


def test_empty_reads_in_a_row() -> None:
    pace = FlowControl(rules(EMPTY), filtered=False)
    assert [pace.empty(40, NOON) for _ in range(9)] == [40, 40, *[300] * 5, 1000, 1000]
    pace.delivered(package(), NOON)
    assert pace.empty(40, NOON) == 40
    for _ in range(5):
        pace.empty(40, NOON)
    pace.refused(1, NOON)
    assert pace.empty(40, NOON) == 40


def test_the_default_rules_for_empty_reads_count_where_the_group_has_none() -> None:
    pace = FlowControl(rules(LOW, EMPTY), filtered=False)
    assert [pace.empty(40, NOON) for _ in range(3)] == [40, 40, 300]


@pytest.mark.parametrize(
    ("filtered", "slow", "expected"),
    [(False, False, 5), (False, True, 5), (True, False, 100), (True, True, 400)],
)
def test_low_fetch(filtered: bool, slow: bool, expected: int) -> None:
    for both in (rules(LOW), rules(" ", LOW), rules(EMPTY, LOW)):
        pace = FlowControl(both, filtered=filtered)
        assert pace.delivered(package(slow=slow), NOON) == expected


def test_new_rules_count_from_the_next_minute() -> None:
    changing = rules()
    pace = FlowControl(changing, filtered=False)
    assert pace.delivered(package(), NOON) == 0
    changing.default_rules = FlowRules.parse(LOW)
    assert pace.delivered(package(), NOON + MINUTE_MS - 1) == 0
    assert pace.delivered(package(), NOON + MINUTE_MS) == 5


def test_a_clock_that_is_set_back_ends_no_rest_later() -> None:
    ahead = 0
    pace = FlowControl(rules(DATA), filtered=False, wall_ms=lambda now_ms: now_ms + ahead)
    assert pace.delivered(package(1), NOON) == 0  # learns the backlog
    now = NOON + MINUTE_MS
    assert pace.delivered(package(13 * MIB), now) == 1000
    ahead = -3_600_000
    assert pace.delivered(package(1), now + MINUTE_MS) == 0, "it is another minute"
    ahead = NIGHT - NOON  # at this time of day there is no limit
    assert pace.delivered(package(100 * MIB), now + 2 * MINUTE_MS) == 0
