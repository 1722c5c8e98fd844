"""The checks before a consumer joins a group (docs/protocol/tubemq.md, section 4.2).

The checks are in Java's order, and the same for consumers that the master assigns partitions to
(methods 4 to 6) and for client-balanced ones (methods 20 to 22). Both may be asked for a signature
first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from google.protobuf.message import Message as PbMessage

from coherer import limits
from coherer._rules.tubemq.groups import ConsumerGroup, GroupSubscription, Member, Mismatch
from coherer._rules.tubemq.registry import LivenessTracker
from coherer._server.tubemq.master.access import Identity
from coherer._server.tubemq.master.state import MasterState
from coherer._server.tubemq.refusal import Refusal, check_text
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.names import TopicCondition
from coherer.errors import ProtocolError

_CODES = {
    Mismatch.KIND: ResultCode.CLIENT_INCONSISTENT_CONSUMETYPE,
    Mismatch.TOPICS: ResultCode.CLIENT_INCONSISTENT_TOPICSET,
    Mismatch.FILTERS: ResultCode.CLIENT_INCONSISTENT_FILTERSET,
    Mismatch.SESSION_KEY: ResultCode.CLIENT_INCONSISTENT_SESSIONKEY,
    Mismatch.SELECT_BIG: ResultCode.CLIENT_INCONSISTENT_SELECTBIG,
    Mismatch.SOURCE_COUNT: ResultCode.CLIENT_INCONSISTENT_SOURCECOUNT,
    Mismatch.NODE_ID: ResultCode.CLIENT_DUPLICATE_INDEXID,
}


class ConsumerAdmission:
    """Admits consumers to groups."""

    def __init__(self, state: MasterState) -> None:
        self._state = state
        self._unsigned: dict[tuple[str, str], Callable[[int], object]] = {}
        self._liveness = LivenessTracker[tuple[str, str]](state.options.consumer_timeout_ms)

    # -- checks

    def check_names(self, client_id: str, host: str | None, group: str) -> None:
        """The first checks of every request of a consumer.

        Raises:
            Refusal: with 400 if a name is not valid.
            StandbyError: this master is a standby.
        """
        check_text("clientId", client_id, limits.CLIENT_ID_CHARS_MAX)
        if host is not None:
            check_text("hostName", host, limits.HOST_CHARS_MAX)
        check_text("groupName", group, limits.GROUP_CHARS_MAX)
        self._state.require_active(client_id)

    def check_topics(
        self, topics: Iterable[str], client_id: str, *, create: bool = True
    ) -> frozenset[str]:
        """The topics of a subscription.

        Args:
            create: whether to create missing topics, if the options of the cluster permit it.

        Raises:
            Refusal: with 400 for no topics or too many, with 431 if one does not exist.
        """
        named = frozenset(topic.strip() for topic in topics if topic.strip())
        if not 0 < len(named) <= limits.TOPICS_PER_CLIENT_MAX:
            raise Refusal(
                ResultCode.BAD_REQUEST,
                f"A consumer has 1 to {limits.TOPICS_PER_CLIENT_MAX} topics, not {len(named)}.",
            )
        deployed = self._state.catalog.topics
        if create and not named.issubset(deployed):
            self._state.create_missing(sorted(named.difference(deployed)), client_id)
        missing = sorted(named.difference(deployed))
        if missing:
            raise Refusal(
                ResultCode.TOPIC_NOT_DEPLOYED,
                f"Topic {', '.join(name[: limits.TOPIC_CHARS_MAX] for name in missing[:10])} "
                f"is not deployed.",
            )
        return named

    def check_rights(
        self, group: str, topics: Collection[str], filters: Mapping[str, frozenset[str]]
    ) -> None:
        """Check that the group may consume these topics with these filters.

        Raises:
            Refusal: with 450 for a topic, with 455 for its filters.
        """
        controls = [
            control
            for topic in sorted(topics)
            if (control := self._state.catalog.consumption(topic, group)) is not None
        ]
        for control in controls:
            if not control.enabled:
                raise Refusal(
                    ResultCode.CONSUME_GROUP_FORBIDDEN,
                    f"Group {group} may not consume topic {control.topic}: "
                    f"{control.reason or 'disabled'}.",
                )
        for control in controls:
            used = filters.get(control.topic, frozenset())
            if control.filtered and not (used and used <= control.filters):
                raise Refusal(
                    ResultCode.CONSUME_CONTENT_FORBIDDEN,
                    f"Group {group} may read topic {control.topic} only with filters of "
                    f"{sorted(control.filters)}.",
                )

    def join(
        self, group: str, member: Member, subscription: GroupSubscription, now_ms: int
    ) -> ConsumerGroup:
        """Add a member to its group.

        Raises:
            Refusal: with 424 to 430 if it differs from the other members.
        """
        groups = self._state.groups
        mismatch = groups.mismatch(group, member.id, subscription, member.node_id)
        if mismatch is not None:
            raise Refusal(
                _CODES[mismatch],
                f"The {mismatch.value} of {member.id} differs from the other consumers "
                f"of group {group}.",
            )
        if len(groups) >= limits.CLIENTS_MAX:
            raise Refusal(ResultCode.SERVICE_UNAVAILABLE, "Too many consumers.")
        return groups.join(group, member, subscription, now_ms)

    # -- registrations without a signature

    def identify(
        self, certificate: pb.MasterCertificateInfo, client_id: str, now_ms: int
    ) -> Identity | None:
        """Authenticate a consumer. Returns None if it still has to sign.

        Raises:
            Refusal: with 415 if its signature is wrong.
        """
        return self._state.authenticator.consumer(client_id, certificate, now_ms)

    def defer(
        self, request: PbMessage, key: tuple[str, str], join: Callable[[int], object], now_ms: int
    ) -> None:
        """Keep a registration until the consumer has signed.

        Args:
            key: group and client id.
            join: adds the consumer to its group.

        Raises:
            Refusal: too many registrations are kept, or this one is too large to be kept unsigned.
        """
        self._expire(now_ms)
        if request.ByteSize() > limits.UNSIGNED_REGISTRATION_BYTES_MAX:
            raise Refusal(ResultCode.CERTIFICATE_FAILURE, "A request of this size must be signed.")
        if len(self._unsigned) >= limits.UNSIGNED_REGISTRATIONS_MAX and key not in self._unsigned:
            raise Refusal(ResultCode.SERVICE_UNAVAILABLE, "Too many consumers have not signed.")
        self._unsigned[key] = join
        self._liveness.seen(key, now_ms)

    def admit(self, group: str, client_id: str, identity: Identity | None, now_ms: int) -> bool:
        """Complete a deferred registration once the consumer has signed.

        Returns False if the consumer still has to sign. A member that no longer authenticates
        itself is not counted as alive until it signs.

        Raises:
            Refusal: with 411 if the consumer is unknown, or differs from its group. In the second
                case it learns the reason when it registers again, with its new token.
        """
        self._expire(now_ms)
        key = group, client_id
        if identity is None:
            known = self._state.groups.get(group)
            if key in self._unsigned:
                self._liveness.seen(key, now_ms)
            elif known is None or client_id not in known.members:
                raise not_registered(group, client_id)
            return False
        join = self._unsigned.pop(key, None)
        if join is not None:
            self._liveness.remove(key)
            try:
                join(now_ms)
            except Refusal:
                raise not_registered(group, client_id) from None
        return True

    def forget(self, group: str, client_id: str) -> None:
        """Drop a deferred registration; the consumer unregisters before it has signed."""
        self._unsigned.pop((group, client_id), None)
        self._liveness.remove((group, client_id))

    def _expire(self, now_ms: int) -> None:
        for key in self._liveness.overdue(now_ms):
            self._unsigned.pop(key, None)


def read_filters(conditions: Iterable[str], topics: Collection[str]) -> dict[str, frozenset[str]]:
    """The filters of a subscription, by topic.

    Raises:
        Refusal: with 400 if they are malformed, too many, or of topics that are not subscribed.
    """
    filters: dict[str, frozenset[str]] = {}
    for text in filter(str.strip, conditions):
        try:
            condition = TopicCondition.parse(text)
        except ProtocolError as error:
            raise Refusal(ResultCode.BAD_REQUEST, error.text) from None
        if condition.topic not in topics:
            raise Refusal(
                ResultCode.BAD_REQUEST,
                f"Filters of topic {condition.topic[: limits.TOPIC_CHARS_MAX]}, which is not "
                f"subscribed.",
            )
        words = filters.get(condition.topic, frozenset()).union(condition.filters)
        if len(words) > limits.FILTERS_MAX or any(
            len(word) > limits.FILTER_CHARS_MAX for word in words
        ):
            raise Refusal(
                ResultCode.BAD_REQUEST,
                f"Filters of {condition.topic[:64]}: {limits.FILTERS_MAX} of "
                f"{limits.FILTER_CHARS_MAX} characters are allowed.",
            )
        if words:
            filters[condition.topic] = words
    return filters


def not_registered(group: str, client_id: str) -> Refusal:
    """The error answer to a consumer that is not registered."""
    return Refusal(
        ResultCode.HB_NO_NODE, f"Consumer {client_id} of group {group} is not registered here."
    )
