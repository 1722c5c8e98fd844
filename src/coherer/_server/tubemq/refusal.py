"""Saying no: a code of section 9 and a text, and the checks that stand first in all methods."""

from __future__ import annotations

from coherer import limits
from coherer._rules.common.topics import Topic, TubeMqTopics
from coherer._wire.tubemq.codes import ResultCode


class Refusal(Exception):  # noqa: N818 - an answer, not a failure of ours
    """A request is refused with a code and a text."""

    def __init__(self, code: ResultCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def known_topic(topics: TubeMqTopics, name: str) -> Topic:
    """The topic that a request names.

    Raises:
        Refusal: with 400 when it cannot be a topic's name, with 403 when it is none of ours.
    """
    check_text("topicName", name, limits.TOPIC_CHARS_MAX)
    topic = topics.get(name)
    if topic is None:
        raise Refusal(ResultCode.FORBIDDEN, f"Topic {name} is not on this broker.")
    return topic


def check_text(what: str, text: str, chars_max: int) -> None:
    """Refuse a name that is blank or too long.

    Raises:
        Refusal: with 400.
    """
    if not text.strip():
        raise Refusal(ResultCode.BAD_REQUEST, f"{what} is blank.")
    if len(text) > chars_max:
        raise Refusal(
            ResultCode.BAD_REQUEST, f"{what} has {len(text)} characters; {chars_max} are allowed."
        )
