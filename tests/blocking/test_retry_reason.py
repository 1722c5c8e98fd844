"""The reason of a retry, from programs without asyncio."""

from __future__ import annotations

import coherer.blocking
from coherer.blocking.rocketmq import Client
from coherer.message import Message


def test_a_reason_comes_back_with_the_message(
    coherer_rocketmq_url: str, coherer_topic: str
) -> None:
    with coherer.blocking.rocketmq.connect(coherer_rocketmq_url) as client:
        with client.producer() as producer:
            producer.send(Message(coherer_topic, b"a"))
        with client.consumer(f"g_{coherer_topic}", coherer_topic, start="earliest") as consumer:
            for message in consumer:
                reason = message.properties.get("cohererRetryReason")
                if message.attempt == 0:
                    assert reason is None
                    message.retry(later=1, reason="not yet")
                elif message.attempt == 1:
                    assert reason == "not yet"
                    message.retry(later=1)
                else:
                    # A retry without a reason keeps the one before.
                    assert (message.attempt, reason) == (2, "not yet")
                    message.dead_letter(reason="never")
                    break
        assert dead_letter_reason(client, f"%DLQ%g_{coherer_topic}") == "never"


def dead_letter_reason(client: Client, topic: str) -> str | None:
    [queue] = client.partitions(topic)
    with client.reader(queue, 0) as reader:
        batch = reader.read()
        assert batch is not None
        [message] = batch
        return message.properties.get("cohererRetryReason")
