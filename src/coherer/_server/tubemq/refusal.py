"""Error answers: a code (docs/protocol/tubemq.md, section 9) and a text, and checks of names."""

from __future__ import annotations

from coherer import limits
from coherer._rules.common.topics import Topic, TubeMqTopics
from coherer._wire.tubemq.codes import ResultCode


class Refusal(Exception):  # noqa: N818 - an error answer, not a failure of the server
    """The request is answered with an error code and a text."""

    def __init__(self, code: ResultCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def known_topic(topics: TubeMqTopics, name: str) -> Topic:
    """The topic that a request names.

    Raises:
        Refusal: with 400 if the name is not valid, with 403 if the topic does not exist here.
    """
    check_text("topicName", name, limits.TOPIC_CHARS_MAX)
    topic = topics.get(name)
    if topic is None:
        raise Refusal(ResultCode.FORBIDDEN, f"Topic {name} is not on this broker.")
    return topic


def check_text(what: str, text: str, chars_max: int) -> None:
    """Check that a name is neither blank nor too long.

    Raises:
        Refusal: with 400 if it is.
    """
    if not text.strip():
        raise Refusal(ResultCode.BAD_REQUEST, f"{what} is blank.")
    if len(text) > chars_max:
        raise Refusal(
            ResultCode.BAD_REQUEST, f"{what} has {len(text)} characters; {chars_max} are allowed."
        )
