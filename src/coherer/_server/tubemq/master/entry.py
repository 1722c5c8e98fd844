"""What both kinds of consumers pass before they are in a group (section 4.2), in Java's order.

Consumers whose partitions the master gives out (methods 4 to 6) and those that choose for
themselves (20 to 22) are checked alike, and both may have to be asked for a signature first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from google.protobuf.message import Message as PbMessage

from coherer import limits
from coherer._rules.tubemq.groups import ConsumerGroup, GroupSubscription, Member, Mismatch
from coherer._rules.tubemq.registry import LivenessTracker
from coherer._server.tubemq.master.access import Proof
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


class Entry:
    """Lets consumers into groups.

    Args:
        state: the master's state.
    """

    def __init__(self, state: MasterState) -> None:
        self._state = state
        self._waiting: dict[tuple[str, str], Callable[[int], object]] = {}
        self._liveness = LivenessTracker[tuple[str, str]](state.options.consumer_timeout_ms)

    # -- checks

    def check_names(self, client_id: str, host: str | None, group: str) -> None:
        """The first checks of every method of a consumer.

        Raises:
            Refusal: 400.
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
            topics: as they were named.
            client_id: who names them.
            create: those that are not there are created, if that is the cluster's option.

        Raises:
            Refusal: 400, or 431 when one is not there.
        """
        named = frozenset(topic.strip() for topic in topics if topic.strip())
        if not 0 < len(named) <= limits.TOPICS_PER_CLIENT_MAX:
            raise Refusal(
                ResultCode.BAD_REQUEST,
                f"{len(named)} topics; 1 to {limits.TOPICS_PER_CLIENT_MAX} are allowed.",
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
        """Whether the group may read these topics with these filters.

        Raises:
            Refusal: 450, or 455 for the filters.
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
        """Books a member.

        Raises:
            Refusal: 424 to 430 when it does not fit to the others.
        """
        groups = self._state.groups
        mismatch = groups.mismatch(group, member.id, subscription, member.node_id)
        if mismatch is not None:
            raise Refusal(
                _CODES[mismatch],
                f"The {mismatch.value} of {member.id} is not that of the other consumers "
                f"of group {group}.",
            )
        if len(groups) >= limits.CLIENTS_MAX:
            raise Refusal(ResultCode.SERVICE_UNAVAILABLE, "Too many consumers.")
        return groups.join(group, member, subscription, now_ms)

    # -- those who have to sign first

    def proof(self, shown: pb.MasterCertificateInfo, client_id: str, now_ms: int) -> Proof | None:
        """What a consumer has shown; None when it has to be asked for a signature.

        Raises:
            Refusal: 415, it has signed wrongly.
        """
        return self._state.credentials.consumer(client_id, shown, now_ms)

    def wait(
        self, request: PbMessage, key: tuple[str, str], enter: Callable[[int], object], now_ms: int
    ) -> None:
        """Remembers a registration until the consumer has signed.

        Args:
            request: what is remembered.
            key: group and client id.
            enter: books the consumer.
            now_ms: the time.

        Raises:
            Refusal: too many are waiting, or this is too much to remember for somebody unknown.
        """
        self._sweep(now_ms)
        if request.ByteSize() > limits.UNSIGNED_BYTES_MAX:
            raise Refusal(ResultCode.CERTIFICATE_FAILURE, "A request of this size must be signed.")
        if len(self._waiting) >= limits.UNSIGNED_MAX and key not in self._waiting:
            raise Refusal(ResultCode.SERVICE_UNAVAILABLE, "Too many consumers have not signed.")
        self._waiting[key] = enter
        self._liveness.seen(key, now_ms)

    def admit(self, group: str, client_id: str, proof: Proof | None, now_ms: int) -> bool:
        """Lets in who had to sign first and now has; False while it has to be asked.

        Somebody who is in, but shows nothing any more, is not booked as seen until it signs.

        Raises:
            Refusal: 411, it is not known, or does not fit into its group (it will hear why when it
                registers again, with its new token).
        """
        self._sweep(now_ms)
        key = group, client_id
        if proof is None:
            known = self._state.groups.get(group)
            if key in self._waiting:
                self._liveness.seen(key, now_ms)
            elif known is None or client_id not in known.members:
                raise unknown(group, client_id)
            return False
        enter = self._waiting.pop(key, None)
        if enter is not None:
            self._liveness.remove(key)
            try:
                enter(now_ms)
            except Refusal:
                raise unknown(group, client_id) from None
        return True

    def forget(self, group: str, client_id: str) -> None:
        """The consumer says goodbye before it has signed."""
        self._waiting.pop((group, client_id), None)
        self._liveness.remove((group, client_id))

    def _sweep(self, now_ms: int) -> None:
        for key in self._liveness.overdue(now_ms):
            self._waiting.pop(key, None)


def read_filters(conditions: Iterable[str], topics: Collection[str]) -> dict[str, frozenset[str]]:
    """The filters of a subscription, by topic.

    Raises:
        Refusal: 400, they are none, too many, or for topics that are not subscribed.
    """
    filters: dict[str, frozenset[str]] = {}
    for text in conditions:
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
        words = frozenset(condition.filters)
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


def unknown(group: str, client_id: str) -> Refusal:
    """The answer to somebody who is not registered."""
    return Refusal(
        ResultCode.HB_NO_NODE, f"Consumer {client_id} of group {group} is not registered here."
    )
