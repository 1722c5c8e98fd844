"""Codes 202, 208, 303 and 317: where queues end, and how far behind their groups are (2.12)."""

from __future__ import annotations

from datetime import datetime

from coherer._rules.common.topics import Topic
from coherer._rules.rocketmq.stats import GROUP_GET_NUMS
from coherer._server.rocketmq.broker.admin.common import (
    done,
    is_elsewhere,
    known_topic,
    position,
    queues_of,
    stored_ms,
    topics_read,
)
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.remoting import Handler, of_anyone
from coherer._wire.rocketmq import bodies
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import (
    BrokerConsumeStatsHeader,
    ConsumeStatsHeader,
    ConsumeTimeSpanHeader,
    TopicHeader,
    parse,
)
from coherer._wire.rocketmq.names import Queue


class ProgressDesk:
    """Says how far queues and groups are.

    Args:
        state: what the broker's parts share.
    """

    def __init__(self, state: RocketState) -> None:
        self._state = state

    def handlers(self) -> dict[int, Handler]:
        """What is answered here, by request code."""
        return {
            RequestCode.GET_TOPIC_STATS_INFO: of_anyone(self.topic),
            RequestCode.GET_CONSUME_STATS: of_anyone(self.group),
            RequestCode.QUERY_CONSUME_TIME_SPAN: of_anyone(self.time_span),
            RequestCode.GET_BROKER_CONSUME_STATS: of_anyone(self.all_groups),
        }

    def topic(self, request: Command) -> Command:
        """Code 202: the queues of a topic.

        Raises:
            Refusal: with 17 when there is no such topic.
        """
        topic = known_topic(self._state, parse(TopicHeader, request.fields).topic)
        table = {
            queue: bodies.TopicOffset(
                min_offset=low,
                max_offset=high,
                last_update_timestamp=max(0, stored_ms(self._state, queue, high - 1)),
            )
            for queue, low, high in queues_of(self._state, topic, topic.write_queues)
        }
        return done(bodies.TopicStats(offset_table=table))

    def group(self, request: Command) -> Command:
        """Code 208: how far behind a group is; nothing for topics that it does not read."""
        header = parse(ConsumeStatsHeader, request.fields)
        group = header.consumer_group
        names = [header.topic] if header.topic else topics_read(self._state, group)
        table: dict[Queue, bodies.OffsetWrapper] = {}
        per_s = 0.0
        for name in names:
            topic = self._state.topics.get(name)
            if topic is not None and not is_elsewhere(self._state, group, name):
                found = self._of_topic(group, topic)
                table.update(found.offset_table)
                per_s += found.consume_tps
        return done(bodies.ConsumeStats(offset_table=table, consume_tps=per_s))

    def all_groups(self, request: Command) -> Command:
        """Code 317: how far behind all groups are, perhaps in ordered topics only."""
        header = parse(BrokerConsumeStatsHeader, request.fields)
        listed: list[dict[str, list[bodies.ConsumeStats]]] = []
        behind = 0
        for group in self._state.groups:
            found = self._of_group(group.group_name, header.is_order)
            listed.append({group.group_name: found})
            behind += sum(
                place.broker_offset - place.consumer_offset
                for stats in found
                for place in stats.offset_table.values()
            )
        return done(
            bodies.BrokerConsumeStats(
                broker_addr=self._state.options.address,
                consume_stats_list=listed,
                total_diff=behind,
            )
        )

    def time_span(self, request: Command) -> Command:
        """Code 303: which times of a topic a group has still to read.

        Raises:
            Refusal: with 17 when there is no such topic.
        """
        header = parse(ConsumeTimeSpanHeader, request.fields)
        topic = known_topic(self._state, header.topic)
        spans = [
            self._span(header.group, queue, low, high)
            for queue, low, high in queues_of(self._state, topic, topic.write_queues)
        ]
        return done(bodies.ConsumeTimeSpan(consume_time_span_set=spans))

    # -- inside

    def _of_group(self, group: str, ordered_only: bool) -> list[bodies.ConsumeStats]:
        found: list[bodies.ConsumeStats] = []
        for name in topics_read(self._state, group):
            topic = self._state.topics.get(name)
            if topic is None or (ordered_only and not topic.order):
                continue
            if not is_elsewhere(self._state, group, name):
                found.append(self._of_topic(group, topic))
        return found

    def _of_topic(self, group: str, topic: Topic) -> bodies.ConsumeStats:
        state = self._state
        table: dict[Queue, bodies.OffsetWrapper] = {}
        for queue, _, high in queues_of(state, topic, topic.read_queues):
            offset = max(0, position(state, group, queue))
            table[queue] = bodies.OffsetWrapper(
                broker_offset=high,
                consumer_offset=offset,
                last_timestamp=max(0, stored_ms(state, queue, offset - 1)),
            )
        rate = state.counts.stats.per_s(GROUP_GET_NUMS, f"{topic.name}@{group}")
        return bodies.ConsumeStats(offset_table=table, consume_tps=rate)

    def _span(self, group: str, queue: Queue, low: int, high: int) -> bodies.QueueTimeSpan:
        state = self._state
        offset = position(state, group, queue)
        first_ms, last_ms = stored_ms(state, queue, low), stored_ms(state, queue, high - 1)
        at_ms = stored_ms(state, queue, offset - 1) if offset > 0 else first_ms
        following = max(offset, low)
        stored = stored_ms(state, queue, following) if following < high else state.wall_ms()
        delay_ms = max(state.wall_ms() - stored, 0)  # the clock may have been set back
        return bodies.QueueTimeSpan(
            message_queue=queue,
            min_time_stamp=first_ms,
            max_time_stamp=last_ms,
            consume_time_stamp=at_ms,
            delay_time=delay_ms,
            min_time_stamp_str=_text(first_ms),
            max_time_stamp_str=_text(last_ms),
            consume_time_stamp_str=_text(at_ms),
        )


def _text(time_ms: int) -> str:
    """A time as Java's tools show it, in the broker's zone."""
    at = datetime.fromtimestamp(time_ms / 1000).astimezone()
    return f"{at:%Y-%m-%d#%H:%M:%S}:{time_ms % 1000:03d}"
