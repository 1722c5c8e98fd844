"""Which messages a pull wants: what it says itself, or what its group's heartbeats said (2.6).

`Wanted` is the answer: tag codes for the store, or a test of the properties, or neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from coherer._record.properties import RETRY_TOPIC, TAGS, tag_code
from coherer._rules.common.topics import RETRY_PREFIX
from coherer._rules.rocketmq.clients import ALL, BROADCASTING, TAG
from coherer._rules.rocketmq.clients import Subscription as Subscribed
from coherer._rules.rocketmq.groups import Group
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.refusal import Refusal
from coherer._wire.rocketmq.codes import FAQ, ResponseCode
from coherer._wire.rocketmq.headers import PullHeader
from coherer._wire.rocketmq.pulling import SUBSCRIPTION
from coherer._wire.rocketmq.subscription import Subscription
from coherer.errors import UsageError

_CACHED_MAX = 1024


class Wanted(msgspec.Struct, frozen=True):
    """What a pull wants.

    Args:
        tags: the codes of its tags; None for all.
        test: whether a message with such properties is wanted; None for all.
    """

    tags: frozenset[int] | None = None
    test: Callable[[Mapping[str, str]], bool] | None = None


EVERYTHING = Wanted()


class Subscriptions:
    """Finds out what pulls want."""

    def __init__(self, state: RocketState) -> None:
        self._state = state
        self._filters = state.filters
        self._said: dict[tuple[str, str | None, str | None], Wanted] = {}

    def wanted(self, header: PullHeader, group: Group) -> Wanted:
        """What the pull wants.

        Raises:
            Refusal: it does not say so, in one of the ways of 2.6.
        """
        if header.sys_flag & SUBSCRIPTION:
            wanted = self._in_request(header)
        else:
            wanted = self._of_group(header, group)
        if self._state.options.filter_retries and header.topic.startswith(RETRY_PREFIX):
            return self._as_at_first(header.topic, wanted)
        return wanted

    def _in_request(self, header: PullHeader) -> Wanted:
        key = header.topic, header.subscription, header.expression_type
        wanted = self._said.get(key)
        if wanted is None:
            wanted = self._build(header)
            if len(self._said) >= _CACHED_MAX:
                self._said.clear()
            self._said[key] = wanted
        elif not self._is_tags(header.expression_type):
            self._check_allowed(header.expression_type)
        return wanted

    def _build(self, header: PullHeader) -> Wanted:
        kind = header.expression_type
        try:
            said = Subscription.parse(header.topic, header.subscription, kind or TAG)
        except UsageError:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
            ) from None
        if self._is_tags(kind):
            return _by_tags(said.text, frozenset(said.codes))
        self._check_allowed(kind)
        subscribed = Subscribed(topic=header.topic, expression=said.text, type=said.kind)
        # A wrong expression gives no filter, and without one everything passes: so does Java's.
        built = self._filters.build(header.consumer_group, subscribed, self._state.now_ms())
        return EVERYTHING if built is None else Wanted(test=built.matches)

    def _of_group(self, header: PullHeader, group: Group) -> Wanted:
        consumers = self._state.consumers.get(header.consumer_group)
        if consumers is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}"
            )
        broadcasting = consumers.settings.message_model == BROADCASTING
        if broadcasting and not group.consume_broadcast_enable:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
            )
        said = consumers.subscriptions.get(header.topic)
        if said is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}"
            )
        if said.version < header.sub_version:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        if said.class_filter:  # obsolete: what filters is not here (2.6)
            return EVERYTHING
        if self._is_tags(said.type):
            return _by_tags(said.expression, said.codes)
        return self._of_filter(header, said)

    def _of_filter(self, header: PullHeader, said: Subscribed) -> Wanted:
        found = self._filters.get(header.topic, header.consumer_group)
        if found is None:
            raise Refusal(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
        if found.version < header.sub_version:
            raise Refusal(
                ResponseCode.FILTER_DATA_NOT_LATEST,
                "the consumer's consumer filter data not latest",
            )
        self._check_allowed(said.type)
        return Wanted(test=found.matches)

    def _as_at_first(self, topic: str, wanted: Wanted) -> Wanted:
        """What comes back passes the filter of the topic where it was sent first."""
        group, tags = topic.removeprefix(RETRY_PREFIX), wanted.tags

        def test(properties: Mapping[str, str]) -> bool:
            if tags is not None and tag_code(properties.get(TAGS)) not in tags:
                return False
            first = self._filters.get(properties.get(RETRY_TOPIC, ""), group)
            return first is None or first.matches(properties)

        return Wanted(test=test)

    def _check_allowed(self, kind: str | None) -> None:
        if not self._state.options.property_filter:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {kind}",
            )

    def _is_tags(self, kind: str | None) -> bool:
        return not kind or kind == TAG


def _by_tags(text: str, codes: frozenset[int]) -> Wanted:
    return EVERYTHING if text == ALL else Wanted(codes)
