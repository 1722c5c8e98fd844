"""Converts the text of an option to the value that `NodeOptions` holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coherer._store.topic_retention import TopicLimit
from coherer.errors import UsageError

# These are functions because a lambda in an annotation would not see the names of its module.


def accounts(texts: Sequence[str]) -> dict[str, str]:
    """Return passwords by name, from texts `NAME=PASSWORD`; errors do not quote them.

    Raises:
        UsageError: a name or a password is missing.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, _, password = text.partition("=")
        if not (name and password):
            raise UsageError("`users` takes NAME=PASSWORD.")
        found[name] = password
    return found


def limits_of(texts: Sequence[str]) -> dict[str, str]:
    """Return limits by topic, from texts `TOPIC=LIMIT`."""
    return {topic: limit for text in texts for topic, _, limit in [text.partition("=")]}


def roles(word: str) -> frozenset[str]:
    """Return the roles that `both` or the name of one role selects."""
    return frozenset({"master", "broker"} if word == "both" else {word})


def protocols(word: str) -> frozenset[str]:
    """Return the protocols that `both` or the name of one protocol selects."""
    return frozenset({"tubemq", "rocketmq"} if word == "both" else {word})


def hours(given: float | str) -> float | str | None:
    """Return hours; None, which means no limit, for 0."""
    return None if given in (0, "0") else given  # not a set: a list is not hashable


def topic_limits(texts: Mapping[str, str]) -> dict[str, TopicLimit]:
    """The limits of topics.

    Raises:
        UsageError: one is malformed.
    """
    found: dict[str, TopicLimit] = {}
    for topic, text in texts.items():
        try:
            found[topic] = TopicLimit.parse(text)
        except UsageError as error:
            error.text = f"`topic_retention` of {topic}: {error.text}"
            raise
    return found
