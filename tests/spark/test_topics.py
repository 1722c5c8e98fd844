"""Topics: named, or matched again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coherer.spark.options import read_options
from coherer.spark.topics import RESOLVE_MS, Topics

if TYPE_CHECKING:
    from conftest import ListQueue

URL = "tubemq://h:1"


def test_named_topics_are_asked_for_as_they_are(list_queue: ListQueue) -> None:
    topics = Topics(read_options({"url": URL, "topic": "u,t"}), lambda: 0)
    assert topics.bounds(list_queue) == {
        "t": {"1:0": (0, 100), "1:1": (5, 25)},
        "u": {"1:0": (0, 3)},
    }
    assert list(topics.bounds(list_queue)) == ["t", "u"]


def test_a_pattern_matches_whole_names_and_finds_new_topics(list_queue: ListQueue) -> None:
    now_ms = 0
    options = read_options({"url": URL, "topicsPattern": "t|v."})
    topics = Topics(options, lambda: now_ms)
    assert topics.names(list_queue) == ("t",)
    list_queue.held |= {"vv": {("1", 0): (0, 3)}, "vvv": {}}
    assert topics.names(list_queue) == ("t",)
    now_ms = RESOLVE_MS
    assert topics.names(list_queue) == ("t", "vv")
