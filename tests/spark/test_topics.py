"""Topics: named, or matched with a pattern repeatedly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

from coherer._wire.rocketmq.codes import TopicNotExistError
from coherer._wire.tubemq.codes import TopicNotDeployedError
from coherer.errors import RefusedError
from coherer.spark.options import read_options
from coherer.spark.topics import RESOLVE_MS, Topics

if TYPE_CHECKING:
    from tests.spark.queues import ListQueue

URL = "tubemq://h:1"


def test_named_topics_are_used_as_given(list_queue: ListQueue) -> None:
    topics = Topics(read_options({"url": URL, "topic": "u,t"}), lambda: 0)
    assert topics.bounds(list_queue) == {
        "t": {"1:0": (0, 100), "1:1": (5, 25)},
        "u": {"1:0": (0, 3)},
    }
    assert list(topics.bounds(list_queue)) == ["t", "u"]


GONE = [TopicNotDeployedError("Not deployed."), TopicNotExistError("Not there.")]


@pytest.mark.parametrize("gone", GONE)
def test_a_missing_topic_is_an_error_or_skipped(
    list_queue: ListQueue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    gone: RefusedError,
) -> None:
    held = list_queue.bounds

    def bounds(topic: str, **_: object) -> Mapping[tuple[str, int], tuple[int, int]]:
        if topic not in list_queue.held:
            raise gone
        return held(topic)

    monkeypatch.setattr(list_queue, "bounds", bounds)
    del list_queue.held["t"]
    with pytest.raises(type(gone)):
        Topics(read_options({"url": URL, "topic": "t,u"}), lambda: 0).bounds(list_queue)
    lenient = read_options({"url": URL, "topic": "t,u", "failOnDataLoss": "false"})
    topics = Topics(lenient, lambda: 0)
    for _ in range(3):
        assert list(topics.bounds(list_queue)) == ["u"]
    assert caplog.text.count("Skipping topic t") == 1
    list_queue.held["t"] = {("1", 0): (0, 1)}
    assert list(topics.bounds(list_queue)) == ["t", "u"]

    matched = Topics(read_options({"url": URL, "topicsPattern": "."}), lambda: 0)
    assert list(matched.bounds(list_queue)) == ["t", "u"]
    del list_queue.held["t"]
    assert list(matched.bounds(list_queue)) == ["u"], "deleted since it was matched"


def test_a_pattern_matches_whole_names_and_finds_new_topics(list_queue: ListQueue) -> None:
    now_ms = 0
    options = read_options({"url": URL, "topicsPattern": "t|v."})
    topics = Topics(options, lambda: now_ms)
    assert topics.names(list_queue) == ("t",)
    list_queue.held |= {"vv": {("1", 0): (0, 3)}, "vvv": {}}
    assert topics.names(list_queue) == ("t",)
    now_ms = RESOLVE_MS
    assert topics.names(list_queue) == ("t", "vv")
