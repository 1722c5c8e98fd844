"""Kafka's names beside Coherer's: options and columns of Spark's Kafka source and sink.

Errors and `docs/spark.md` read the same tables. The names are those of Spark's integration guide
for Kafka (4.x).

>>> answer("subscribe")
'Kafka calls it subscribe; Coherer calls it topic.'
>>> answer("kafka.bootstrap.servers")
'Kafka calls it kafka.bootstrap.servers; Coherer calls it url.'
>>> answer("kafka.fetch.max.bytes")
"Coherer has no Kafka client to pass it to; Coherer's own options suffice."
>>> answer("startingofsets") is None
True
"""

from __future__ import annotations

from typing import Final

import msgspec


class Row(msgspec.Struct, frozen=True):
    """A name of Kafka's.

    Args:
        kafka: Kafka's name.
        coherer: Coherer's name; empty if Coherer has no such option.
        note: the difference, or the replacement.
    """

    kafka: str
    coherer: str
    note: str = ""


READ: Final = (
    Row("kafka.bootstrap.servers", "url",
        "The masters or name servers, with the protocol: `rocketmq://host:port`."),
    Row("subscribe", "topic"),
    Row("subscribePattern", "topicsPattern", "A Python regular expression for the whole name."),
    Row("assign", "assign",
        "Partitions are `broker:partition`; a bare number is that partition of every broker."),
    Row("startingOffsets", "startingOffsets",
        "Partitions are `broker:partition`. A batch may start at `latest`."),
    Row("startingTimestamp", "startingTimestamp",
        "Kafka lets it win over the other two; Coherer refuses two starts. The default of the "
        "strategy below is `latest` here."),
    Row("startingOffsetsByTimestamp", "startingOffsetsByTimestamp",
        "A number instead of the partitions is for all of the topic."),
    Row("startingOffsetsByTimestampStrategy", "startingOffsetsByTimestampStrategy"),
    Row("endingOffsets", "endingOffsets", "Coherer also accepts `earliest` and -2."),
    Row("endingTimestamp", "endingTimestamp"),
    Row("endingOffsetsByTimestamp", "endingOffsetsByTimestamp"),
    Row("failOnDataLoss", "failOnDataLoss", "For messages that are gone; `mode` is for bad ones."),
    Row("maxOffsetsPerTrigger", "maxOffsetsPerTrigger", "See also `maxBytesPerTrigger`."),
    Row("minOffsetsPerTrigger", "minOffsetsPerTrigger"),
    Row("maxTriggerDelay", "maxTriggerDelay"),
    Row("minPartitions", "minPartitions", "See also `maxPartitions`."),
    Row("maxRecordsPerPartition", "maxRecordsPerPartition"),
    Row("includeHeaders", "includeHeaders", "The column is `properties`, a map of strings."),
    Row("kafka.group.id", "group",
        "Only shows the progress, with `commitOffsets`: readers never join a group."),
    Row("groupIdPrefix", "", "Readers use a group of their own, which no other consumer sees."),
    Row("kafkaConsumer.pollTimeoutMs", "timeout"),
    Row("fetchOffset.numRetries", "timeout", "Requests are repeated until the timeout."),
    Row("fetchOffset.retryIntervalMs", "timeout", "Requests are repeated until the timeout."),
    Row("kafka.security.protocol", "tls"),
    Row("kafka.sasl.jaas.config", "user", "With `password` or `passwordFile`."),
    Row("kafka.sasl.mechanism", "user", "With `password` or `passwordFile`."),
    Row("kafka.ssl.truststore.location", "tlsTrust", "A PEM file."),
    Row("kafka.ssl.keystore.location", "tlsCertificate", "A PEM file; the key is `tlsKey`."),
    Row("kafka.*", "", "There is no Kafka client to pass other settings to."),
    Row("spark.kafka.consumer.cache.*", "",
        "Each worker process keeps one connection for each cluster."),
    Row("spark.kafka.consumer.fetchedData.cache.*", "",
        "A reader keeps what it has fetched ahead until its task ends."),
    Row("spark.sql.streaming.kafka.useDeprecatedOffsetFetching", "",
        "Brokers are asked for offsets without joining a group."),
    Row("spark.kafka.clusters.*", "", "No delegation tokens: use `passwordFile`."),
)  # fmt: skip
"""Options and settings of the source."""

WRITE: Final = (
    Row("kafka.bootstrap.servers", "url", "With the protocol: `rocketmq://host:port`."),
    Row("topic", "topic"),
    Row("includeHeaders", "includeHeaders",
        "The column `properties` is sent if it is there; false leaves it out."),
    Row("kafka.partitioner.class", "", "The client chooses a partition for each message."),
    Row("kafka.*", "", "There is no Kafka client to pass other settings to."),
    Row("spark.kafka.producer.cache.*", "",
        "Each worker process keeps one connection for each cluster."),
)  # fmt: skip
"""Options and settings of the sink."""

READ_COLUMNS: Final = (
    Row("key", "key", "Text; Kafka's is binary. Null with TubeMQ."),
    Row("value", "value"),
    Row("topic", "topic"),
    Row("partition", "partition", "Together with `broker`: each broker counts its own."),
    Row("offset", "offset"),
    Row("timestamp", "timestamp", "See also `bornTimestamp` and `storeTimestamp`."),
    Row("timestampType", "timestampType",
        "In `columns`. Never 1 (LogAppendTime): that is `storeTimestamp`."),
    Row("headers", "properties", "A map of strings; Kafka's is an array of name and binary."),
)  # fmt: skip
"""Columns of the source."""

WRITE_COLUMNS: Final = (
    Row("key", "key", "RocketMQ only; without a space, or an array of strings."),
    Row("value", "value", "Required and not empty: neither protocol has tombstones."),
    Row("headers", "properties", "A map of strings; Kafka's is an array of name and binary."),
    Row("topic", "topic"),
    Row("partition", "partition", "Together with `broker`: each broker counts its own."),
)  # fmt: skip
"""Columns of the sink."""

METRICS: Final = (
    Row("latestOffset", "latestOffset", "In `StreamingQueryProgress`."),
    Row("minOffsetsBehindLatest", "behind_min",
        "Of `source_metrics(progress)`: Spark shows no metrics of a Python source."),
    Row("maxOffsetsBehindLatest", "behind_max"),
    Row("avgOffsetsBehindLatest", "behind_mean"),
    Row("estimatedTotalBytesBehindLatest", "", "Only Coherer's `lag`, in rows."),
)  # fmt: skip
"""Metrics of a stream."""

_BY_NAME: Final = {row.kafka.lower(): row for row in (*READ, *WRITE) if row.kafka != row.coherer}


def answer(option: str) -> str | None:
    """The replacement of an option of Kafka's, for the error; None for any other name."""
    name = option.lower()
    row = _BY_NAME.get(name)
    if row is None:
        if not name.startswith("kafka."):
            return None
        return "Coherer has no Kafka client to pass it to; Coherer's own options suffice."
    if not row.coherer:
        return f"{row.kafka} is an option of Kafka. {row.note}"
    return f"Kafka calls it {row.kafka}; Coherer calls it {row.coherer}."
