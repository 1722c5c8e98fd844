"""Half batches: many messages that wait as one half message, and are committed in one write.

This is an extension of Coherer; see docs/protocol/rocketmq.md, section 6.7.1. The body of the half
message is a batch (`coherer._record.batches`), which was checked when it came. The committed
messages follow from the half message alone, so that they are the same whenever and however often
they are computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from coherer._record.batches import decode_batch
from coherer._record.layout import COMMITTED, ROLLED_BACK, Record
from coherer._record.properties import CLUSTER, MESSAGES, decode, number_in, value_of
from coherer._rules.common.origins import destination
from coherer._server.rocketmq.broker.send_properties import BatchPropertyRewriter
from coherer._store import DraftBatch
from coherer.errors import ProtocolError


def committed_batch(half: Record, prepared_offset: int) -> DraftBatch | None:
    """The messages of a half batch; None if it is not one, or if its destination is invalid.

    Older brokers stored any property that an application named `cohererMessages`: it makes a half
    batch only of a body that is a batch of so many messages.

    Args:
        half: the half message.
        prepared_offset: its log offset as the producer knows it.
    """
    count = number_in(value_of(half.properties, MESSAGES))
    if not count:
        return None
    try:
        flags, bodies, texts = decode_batch(bytes(half.body))
    except ProtocolError:
        return None
    properties = decode(half.properties)
    found = destination(properties)
    if found is None or len(bodies) != count:
        return None
    data, codes, keys = _rewriter(properties.get(CLUSTER, "")).stored(texts)
    return DraftBatch(
        *found,
        bodies,
        data,
        codes,
        flags,
        keys,
        half.sys_flag & ~ROLLED_BACK | COMMITTED,
        half.born_ms,
        half.born_host,
        half.reconsume_times,
        prepared_offset,
    )


@lru_cache(maxsize=16)
def _rewriter(cluster: str) -> BatchPropertyRewriter:
    return BatchPropertyRewriter("", cluster)


def missing(batch: DraftBatch, stored: Iterable[Record]) -> DraftBatch:
    """The messages of a batch that are not among these records; perhaps none.

    Messages that are equal may take each other's place.
    """
    found = Counter((bytes(one.body), bytes(one.properties), one.flag) for one in stored)
    kept: list[int] = []
    for number, one in enumerate(zip(batch.bodies, batch.properties, batch.flags, strict=True)):
        if found[one]:
            found[one] -= 1
        else:
            kept.append(number)
    return _picked(batch, kept)


def _picked(batch: DraftBatch, numbers: Sequence[int]) -> DraftBatch:
    return msgspec.structs.replace(
        batch,
        bodies=[batch.bodies[number] for number in numbers],
        properties=[batch.properties[number] for number in numbers],
        tag_codes=[batch.tag_codes[number] for number in numbers],
        flags=[batch.flags[number] for number in numbers],
        keys=[batch.keys[number] for number in numbers],
    )
