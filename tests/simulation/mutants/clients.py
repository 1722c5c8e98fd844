"""Planted bugs of the clients: acknowledgements, rebalances, connections."""

from __future__ import annotations

from typing import Any, Final

import pytest

from coherer._client.engine.assigned import PartitionState
from coherer._client.engine.connections import ServerConnection
from coherer._client.rocketmq.consuming.assignment import AssignmentManager, QueueLocks
from coherer._client.rocketmq.consuming.offsets import BrokerOffsets, LocalOffsets
from coherer._client.rocketmq.consuming.redelivery import Redelivery
from coherer._client.rocketmq.producing.broker_sender import MasterSender
from coherer._client.rocketmq.producing.queue_selection import QueueSelector
from coherer._client.tubemq.consumer import AssignmentManager as TubePartitions
from coherer._client.tubemq.fetching import PartitionFetcher
from coherer._client.tubemq.membership import Membership
from coherer.rocketmq import Verdict
from coherer.spark.commits import Coordinator
from coherer.spark.decisions import Decisions, encode

Patch = pytest.MonkeyPatch


def acknowledges_what_it_fetches(patch: Patch) -> None:
    """What a consumer has fetched counts as acknowledged, before anybody has seen it."""
    patch.setattr(PartitionState, "commit_offset", property(lambda state: state.next_offset))


def leaving_stores_no_offsets(patch: Patch) -> None:
    """A consumer that leaves does not tell the broker what it has acknowledged."""

    async def nothing(*_: object) -> None:
        pass

    patch.setattr(AssignmentManager, "_store_offsets", nothing)


def commits_are_not_sent(patch: Patch) -> None:
    """`commit` returns, and the broker knows nothing of it."""

    async def nothing(store: BrokerOffsets, queue: Any) -> None:
        store.table.saved(queue, store.table.get(queue) or 0)

    patch.setattr(BrokerOffsets, "commit", nothing)


def broadcast_offsets_run_ahead(patch: Patch) -> None:
    """A broadcast consumer begins one message too late after a restart."""
    real = LocalOffsets.read

    async def read(store: LocalOffsets, queue: Any, *, exact: bool = True) -> int | None:
        offset = await real(store, queue, exact=exact)
        return None if offset is None else offset + 1

    patch.setattr(LocalOffsets, "read", read)


def orderly_goes_on(patch: Patch) -> None:
    """An orderly consumer goes on behind a message that it has refused."""

    def can_take(state: Any) -> bool:
        return bool(state._waiting)

    patch.setattr(PartitionState, "can_take", property(can_take))


def ignores_locks(patch: Patch) -> None:
    """An orderly consumer reads queues whose locks it did not get."""

    async def lock(locks: Any, queues: Any) -> Any:
        return frozenset(queues)

    async def nothing(locks: Any) -> None:
        pass

    patch.setattr(QueueLocks, "lock", lock)
    patch.setattr(QueueLocks, "renew", nothing)


def refusals_are_forgotten(patch: Patch) -> None:
    """A refused message counts as sent back although no broker has taken it."""

    async def back(*_: object) -> bool:
        return True

    patch.setattr(Redelivery, "_send_back", back)


def keys_go_anywhere(patch: Patch) -> None:
    """Messages with one key go to several queues."""
    real = QueueSelector.queue_of_key
    turns = iter(range(1 << 30))
    patch.setattr(
        QueueSelector, "queue_of_key", lambda selector, key: real(selector, f"{key}{next(turns)}")
    )


def dead_connections_stay(patch: Patch) -> None:
    """A connection that transports nothing any more is kept for ever."""
    patch.setattr(ServerConnection, "_dead", lambda connection: False)


def sends_again_what_was_lost(patch: Patch) -> None:
    """A message whose answer was lost is sent again, though nobody asked for it."""
    real = MasterSender.__init__

    def init(sender: Any, *args: Any, **options: Any) -> None:
        real(sender, *args, **{**options, "retry_lost": True})

    patch.setattr(MasterSender, "__init__", init)


def acknowledges_with_the_get(patch: Patch) -> None:
    """The next get acknowledges a batch that the application has not acknowledged."""
    real = PartitionFetcher._fetch_once

    async def fetch(fetcher: PartitionFetcher) -> int:
        fetcher.ack_pending = True
        return await real(fetcher)

    patch.setattr(PartitionFetcher, "_fetch_once", fetch)


def unacknowledged_counts_when_leaving(patch: Patch) -> None:
    """A consumer that leaves acknowledges what the application has in hand."""
    real = TubePartitions._unregister

    async def unregister(partitions: TubePartitions, fetcher: PartitionFetcher) -> None:
        fetcher.ack_pending = True
        await real(partitions, fetcher)

    patch.setattr(TubePartitions, "_unregister", unregister)


def acknowledged_is_forgotten_when_leaving(patch: Patch) -> None:
    """A consumer that leaves does not tell the broker what it has acknowledged."""
    real = TubePartitions._unregister

    async def unregister(partitions: TubePartitions, fetcher: PartitionFetcher) -> None:
        fetcher.ack_pending = False
        await real(partitions, fetcher)

    patch.setattr(TubePartitions, "_unregister", unregister)


def no_heartbeats_to_the_master(patch: Patch) -> None:
    """The master takes every consumer for dead after a while."""

    async def nothing(_: Membership) -> None:
        return None

    patch.setattr(Membership, "_send_heartbeat", nothing)


def commits_before_it_decides(patch: Patch) -> None:
    """The coordinator of a transactional sink commits, and then records its decision."""
    real = Coordinator.commit

    def commit(coordinator: Any, name: str, halves: Any, plan: str = "") -> None:
        coordinator._queue.end(halves, Verdict.COMMIT)
        real(coordinator, name, halves, plan)

    patch.setattr(Coordinator, "commit", commit)


def ignores_decisions(patch: Patch) -> None:
    """A query that starts again decides anew, with what its tasks have sent now."""

    def record(decisions: Any, name: str, decision: Any) -> bool:
        decisions._folder.replace(name + ".decision", encode(decision))
        return True

    patch.setattr(Decisions, "record", record)
    patch.setattr(Coordinator, "finish", lambda coordinator, name: False)
    patch.setattr(Decisions, "latest", lambda decisions: -1)


def decides_again_after_a_pause(patch: Patch) -> None:
    """A driver that hung decides about what another one has finished and forgotten."""

    def record(decisions: Any, name: str, decision: Any) -> bool:
        return bool(decisions._folder.create(name + ".decision", encode(decision)))

    patch.setattr(Decisions, "record", record)


def unanswered_commits_count(patch: Patch) -> None:
    """The coordinator does not repeat a commit that was not answered."""
    real = Coordinator._commit_some

    def commit(*arguments: Any) -> Any:
        left, _ = real(*arguments)
        return left.pick(()), None

    patch.setattr(Coordinator, "_commit_some", commit)


MUTANTS: Final = {
    "tubemq": (
        acknowledges_with_the_get,
        unacknowledged_counts_when_leaving,
        acknowledged_is_forgotten_when_leaving,
        no_heartbeats_to_the_master,
        dead_connections_stay,
    ),
    "rocketmq": (
        acknowledges_what_it_fetches,
        leaving_stores_no_offsets,
        commits_are_not_sent,
        broadcast_offsets_run_ahead,
        orderly_goes_on,
        ignores_locks,
        refusals_are_forgotten,
        keys_go_anywhere,
        sends_again_what_was_lost,
        dead_connections_stay,
        commits_before_it_decides,
        ignores_decisions,
        decides_again_after_a_pause,
        unanswered_commits_count,
    ),
}
