"""A scripted broker of RocketMQ with messages, and consumers of them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from coherer._client.rocketmq.consuming.consumer import Consumer
from coherer._record import layout
from coherer._record.properties import encode
from coherer._wire.rocketmq.bodies import ConsumerIds, HeartbeatData, LockBatch, LockedBatch
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.names import Queue
from coherer.rocketmq import Client as RocketClient

PULL = RequestCode.PULL_MESSAGE
BACK = RequestCode.CONSUMER_SEND_MSG_BACK
STORE = RequestCode.UPDATE_CONSUMER_OFFSET
MEMBERS = RequestCode.GET_CONSUMER_LIST_BY_GROUP
ZERO = Queue("demo", "broker-a", 0)


class FakeQueues:
    """What the scripted broker has in the queues of `demo`, and how it gives that out."""

    def __init__(self, cluster: Any, queues: int = 1) -> None:
        self.cluster = cluster
        self.records: defaultdict[int, list[bytes]] = defaultdict(list)
        self.offsets: dict[tuple[str, int], int] = {}
        self.others: list[str] = []
        self.copied: dict[str, int] = {}  # how many messages a slave has copied
        self.package = 2
        self.held: list[Any] = []
        cluster.topics["demo"] = queues
        cluster.topics["%RETRY%readers"] = 1
        for code, script in {
            MEMBERS: self.members,
            PULL: self.pull,
            RequestCode.QUERY_CONSUMER_OFFSET: self.stored,
            RequestCode.GET_MAX_OFFSET: lambda asked: self.answer(asked, self.end(asked)),
            RequestCode.GET_MIN_OFFSET: lambda asked: self.answer(asked, 0),
            RequestCode.LOCK_BATCH_MQ: self.lock,
        }.items():
            cluster.always(code, script)

    def put(self, *bodies: bytes, queue: int = 0, **properties: str) -> None:
        for body in bodies:
            self.records[queue].append(
                layout.encode(
                    "demo",
                    body,
                    encode({"UNIQ_KEY": body.decode(), **properties}),
                    queue_id=queue,
                    queue_offset=len(self.records[queue]),
                    physical_offset=1000 + len(self.records[queue]),
                    store_ms=1,
                )
            )
        waiting, self.held = self.held, []
        for asked in waiting:
            self.pull(asked)

    def end(self, asked: Any) -> int:
        if asked.fields["topic"] != "demo":  # the retry topic
            return 0
        end = len(self.records[int(asked.fields["queueId"])])
        return min(end, self.copied.get(asked.broker, end))

    def answer(self, asked: Any, offset: int) -> None:
        asked.answer(fields={"offset": str(offset)})

    def members(self, asked: Any) -> None:
        beats = self.cluster.asked(RequestCode.HEART_BEAT)
        own = {HeartbeatData.decode(beat.request.body).client_id for beat in beats[-1:]}
        asked.answer(body=ConsumerIds(consumer_id_list=[*own, *self.others]).encode())

    def stored(self, asked: Any) -> None:
        key = asked.fields["topic"], int(asked.fields["queueId"])
        if key in self.offsets:
            self.answer(asked, self.offsets[key])
        else:
            asked.answer(22, "Not found")

    def lock(self, asked: Any) -> None:
        asked.answer(body=LockedBatch(queues=LockBatch.decode(asked.request.body).queues).encode())

    def pull(self, asked: Any) -> None:
        offset, end = int(asked.fields["queueOffset"]), self.end(asked)
        if offset >= end and asked.broker in self.copied:
            asked.answer(19, "NO_NEW_MESSAGE", self.head(offset, end))
            return
        if offset >= end:
            self.held.append(asked)
            return
        last = min(end, offset + self.package)
        body = b"".join(self.records[int(asked.fields["queueId"])][offset:last])
        asked.answer(0, "FOUND", self.head(last, end), body)

    @staticmethod
    def head(next_offset: int, end: int, broker: int = 0) -> dict[str, str]:
        return {
            "nextBeginOffset": str(next_offset),
            "minOffset": "0",
            "maxOffset": str(end),
            "suggestWhichBrokerId": str(broker),
        }

    def pulls(self) -> list[Any]:
        return [one for one in self.cluster.asked(PULL) if one.fields["topic"] == "demo"]


def reading(client: RocketClient, **options: Any) -> Consumer:
    return client.consumer("readers", "demo", **{"start": "earliest", **options})


async def one(consumer: Consumer):
    async with asyncio.timeout(5):
        batch = await consumer.receive()
    assert batch is not None
    return batch
