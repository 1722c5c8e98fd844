from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._wire.tubemq.flow import DataLimit, FlowRules, FrequencyLimit, LowFetch
from coherer.errors import ProtocolError

EXAMPLE = (
    '[{"type":0,"rule":[{"start":"08:00","end":"17:30","dltInM":1024,"limitInM":20,'
    '"freqInMs":1000}]},{"type":1,"rule":[{"zeroCnt":3,"freqInMs":300},'
    '{"zeroCnt":8,"freqInMs":1000}]},{"type":3,"rule":[{"normFreqInMs":0,'
    '"filterFreqInMs":100,"minDataFilterFreqInMs":400}]}]'
)


def china(hour: int, minute: int) -> int:
    zone = timezone(timedelta(hours=8))
    return int(datetime(2024, 1, 2, hour, minute, 59, tzinfo=zone).timestamp() * 1000)


def test_the_example_of_4_9() -> None:
    rules = FlowRules.parse(EXAMPLE)
    limit = DataLimit(800, 1730, 1024, 20 << 20, 1000)
    assert rules.data_limits == (limit,)
    assert rules.frequency_limits == (FrequencyLimit(8, 1000), FrequencyLimit(3, 300))
    assert rules.low_fetch == LowFetch(0, 100, 400)
    assert rules.data_limit(1025, china(8, 0)) == limit
    assert rules.data_limit(1025, china(17, 30)) == limit
    assert rules.data_limit(1025, china(17, 31)) is None
    assert rules.data_limit(1025, china(7, 59)) is None
    assert rules.data_limit(1024, china(12, 0)) is None
    assert [rules.empty_pause_ms(n) for n in (0, 2, 3, 7, 8, 99)] == [
        None,
        None,
        300,
        300,
        1000,
        1000,
    ]


def test_the_first_matching_limit_applies() -> None:
    item = {"dltInM": 100, "limitInM": 1, "freqInMs": 200}
    rules = FlowRules.parse(
        json.dumps(
            [
                {
                    "type": 0,
                    "rule": [
                        {**item, "start": "10:00", "end": "24:00", "dltInM": 50},
                        {**item, "start": "09:00", "end": "11:00"},
                    ],
                }
            ]
        )
    )
    assert [limit.start for limit in rules.data_limits] == [900, 1000]
    for backlog, start in ((101, 900), (100, 1000), (51, 1000)):
        limit = rules.data_limit(backlog, china(10, 30))
        assert limit is not None
        assert limit.start == start
    assert rules.data_limit(50, china(10, 30)) is None


@pytest.mark.parametrize("text", ["", " ", "[]", '[{"type":2,"rule":[{"a":1}]}]'])
def test_blank_text_means_no_rules(text: str) -> None:
    rules = FlowRules.parse(text)
    assert not rules
    assert rules.data_limit(2**62, 0) is None
    assert rules.empty_pause_ms(10**6) is None
    assert rules.low_fetch is None


GOOD = {
    0: {"start": "08:00", "end": "09:00", "dltInM": 21, "limitInM": 0, "freqInMs": 200},
    1: {"zeroCnt": 1, "freqInMs": 0},
    3: {"normFreqInMs": 0, "filterFreqInMs": 0, "minDataFilterFreqInMs": 0},
}


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (0, {"start": "9:60"}),
        (0, {"start": "25:00"}),
        (0, {"start": "eight"}),
        (0, {"end": "08:00"}),
        (0, {"dltInM": 20}),
        (0, {"limitInM": -1}),
        (0, {"freqInMs": 199}),
        (1, {"zeroCnt": 0}),
        (1, {"freqInMs": -1}),
        (3, {"normFreqInMs": -1}),
        (3, {"filterFreqInMs": 300_001}),
        (3, {"filterFreqInMs": 5}),
        (3, {"minDataFilterFreqInMs": "x"}),
    ],
)
def test_rules_beyond_the_limits_are_refused(kind: int, change: dict[str, object]) -> None:
    assert FlowRules.parse(json.dumps([{"type": kind, "rule": [GOOD[kind]]}]))
    bad = json.dumps([{"type": kind, "rule": [GOOD[kind] | change]}])
    with pytest.raises(ProtocolError):
        FlowRules.parse(bad)


def test_low_fetch_has_exactly_one_item() -> None:
    for items in ([], [GOOD[3], GOOD[3]]):
        text = json.dumps([{"type": 3, "rule": items}])
        with pytest.raises(ProtocolError):
            FlowRules.parse(text)


@given(st.text() | st.text('[]{}":,0123456789typerul'))
def test_any_text_is_rules_or_a_protocol_error(text: str) -> None:
    try:
        rules = FlowRules.parse(text)
    except ProtocolError:
        return
    assert rules.data_limit(0, 0) is None
