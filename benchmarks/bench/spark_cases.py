"""The comparison with Spark's Kafka source and sink: contenders, topics, cases, goals."""

from __future__ import annotations

from dataclasses import dataclass, field

KAFKA, KAFKA_TUNED, TUBEMQ, ROCKETMQ = "kafka", "kafka-tuned", "tubemq", "rocketmq"
ROCKETMQ_JAVA = "rocketmq-java"
FILES, PLAIN = "files", "plain"
NODE, JAVA_ROCKETMQ = "node", "java-rocketmq"
FORMATS = (TUBEMQ, ROCKETMQ)
"""The contenders that have goals."""

SPARKS_CHECKPOINTS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileContextBasedCheckpointFileManager"
    )
}
"""What Spark takes by itself, and `configure` replaces."""


@dataclass(frozen=True)
class Contender:
    """A column of the table.

    Args:
        key: for `--contenders` and the JSON.
        title: for the table.
        format: of Spark.
        site: whose broker it uses.
        options: of reading.
        session: settings that differ from those of `coherer.spark.configure`.
        action: the only one of a case that it can do, and how it does it; None for all.
    """

    key: str
    title: str
    format: str
    site: str
    options: dict[str, str] = field(default_factory=dict)
    session: dict[str, str] = field(default_factory=dict)
    action: tuple[str, str] | None = None

    def can(self, case: SparkCase) -> bool:
        """Whether it takes part in a case."""
        if case.only and self.key not in case.only:
            return False
        return self.action is None or self.action[0] == case.action

    def does(self, case: SparkCase) -> str:
        """The action of `spark_main` for a case."""
        return case.action if self.action is None else self.action[1]


CONTENDERS = [
    Contender(KAFKA, "Kafka default", "kafka", KAFKA, session=SPARKS_CHECKPOINTS),
    Contender(
        KAFKA_TUNED,
        "Kafka tuned",
        "kafka",
        KAFKA,
        {"kafka.fetch.max.wait.ms": "10", "kafka.max.poll.records": "5000"},
    ),
    Contender(TUBEMQ, "tubemq", "tubemq", NODE),
    Contender(ROCKETMQ, "rocketmq", "rocketmq", NODE),
    Contender(ROCKETMQ_JAVA, "rocketmq, Java's broker", "rocketmq", JAVA_ROCKETMQ),
    Contender(FILES, "files of the store", "rocketmq", NODE, action=("batch", "files")),
    Contender(PLAIN, "the same bytes, plain", "rocketmq", NODE, action=("batch", "plain")),
]
OF_FILES = (FILES, PLAIN)
"""Contenders that read the files of the broker's store, from the disk."""

FILES_OF_ROCKETMQ, FILES_OF_PLAIN = 2.0, 0.5
"""Minimum ratios of files to the same rows through the broker, and to a plain read."""


@dataclass(frozen=True)
class Topic:
    """A topic, the same in every broker.

    Args:
        name: of the topic.
        partitions: partitions or queues.
        payload: `payloads` of `spark_payloads` has its messages.
        rows: messages to be read, in a full run.
        crossed: whether they are sent over RocketMQ, each with a property of its own, whatever
            protocol reads them.
    """

    name: str
    partitions: int
    payload: str
    rows: int = 0
    crossed: bool = False


TOPICS = {
    topic.name: topic
    for topic in (
        Topic("rows-1k-8", 8, "1k", 1_000_000),
        Topic("rows-1k-1", 1, "1k", 1_000_000),
        Topic("rows-mixed-8", 8, "mixed", 1_000_000),
        Topic("rows-100b-8", 8, "100b", 4_000_000),
        Topic("rows-crossed-8", 8, "1k", 500_000, crossed=True),
        Topic("json-8", 8, "json", 1_000_000),
        Topic("pace-1", 1, "100b"),
        Topic("pace-8", 8, "100b"),
        Topic("sink-8", 8, "1k"),
    )
}


@dataclass(frozen=True)
class SparkCase:
    """A row of the table.

    Args:
        key: for `--only` and the JSON.
        title: for the table.
        action: of `spark_main`.
        topic: that is read or written.
        parameters: of the action.
        of_default: minimum ratio to Kafka with default settings; of speeds, also for times.
        of_tuned: minimum ratio to Kafka tuned.
        only: the contenders that can do it; empty for all.
        baseline: the case that the same contender is compared with.
        of_baseline: minimum ratio to it.
        of_rocketmq: minimum ratio to `rocketmq`.
        at_most_ms: the longest time of a micro-batch.
    """

    key: str
    title: str
    action: str
    topic: str
    parameters: dict[str, int] = field(default_factory=dict)
    of_default: float | None = None
    of_tuned: float | None = None
    only: tuple[str, ...] = ()
    baseline: str = ""
    of_baseline: float | None = None
    of_rocketmq: float | None = None
    at_most_ms: int | None = None

    @property
    def is_paced(self) -> bool:
        """Whether it measures micro-batches of a stream that is fed at a steady rate."""
        return self.action in ("floor", "visible")


def _sink(tasks: int) -> SparkCase:
    parameters = {"tasks": tasks, "rows": 250_000, "size": 1024}
    title = f"sink, 1 KiB, {tasks} tasks"
    return SparkCase(f"spark-sink-{tasks}", title, "sink", "sink-8", parameters, of_default=0.6)


def _floor(partitions: int, of_tuned: float) -> SparkCase:
    title = f"micro-batch at 1,000/s, {partitions} partition{'s' * (partitions > 1)}"
    topic = f"pace-{partitions}"
    return SparkCase(f"spark-floor-{partitions}", title, "floor", topic, of_tuned=of_tuned)


CASES = [
    SparkCase("spark-batch-1k-8", "batch, 1 KiB, 8 partitions", "batch", "rows-1k-8", of_tuned=1.1),
    SparkCase(
        "spark-batch-1k-1",
        "batch, 1 KiB, 1 partition",
        "batch",
        "rows-1k-1",
        of_default=1.0,
        of_tuned=0.8,
    ),
    SparkCase(
        "spark-batch-100b-8",
        "batch, 100 B, 8 partitions",
        "batch",
        "rows-100b-8",
        of_default=1.5,
        of_tuned=0.9,
    ),
    SparkCase(
        "spark-batch-mixed-8",
        "batch, 1,000 to 1,300 B at random, 8 partitions (to 1 KiB)",
        "batch",
        "rows-mixed-8",
        baseline="spark-batch-1k-8",
        of_baseline=0.9,
    ),
    SparkCase(
        "spark-batch-crossed-8",
        "batch, sent over RocketMQ, different properties",
        "batch",
        "rows-crossed-8",
        only=FORMATS,
        of_rocketmq=round(1 / 1.2, 2),
    ),
    SparkCase("spark-now-1k-8", "AvailableNow, 1 KiB", "now", "rows-1k-8", of_tuned=1.0),
    SparkCase(
        "spark-now-100b-8",
        "AvailableNow, 100 B",
        "now",
        "rows-100b-8",
        of_default=1.5,
        of_tuned=0.9,
    ),
    SparkCase(
        "spark-json-8", "JSON \u2192 windowed counts \u2192 Parquet", "json", "json-8", of_tuned=0.9
    ),
    _sink(2),
    _sink(8),
    SparkCase(
        "spark-exactly-8",
        "sink in a transaction, 1 KiB, 8 tasks (to the sink)",
        "exactly",
        "sink-8",
        {"tasks": 8, "rows": 250_000, "size": 1024},
        only=(ROCKETMQ,),
        baseline="spark-sink-8",
        of_baseline=0.6,
    ),
    _floor(1, 1.0),
    _floor(8, 1.58),
    SparkCase(
        "spark-visible-8",
        "micro-batch at 1,000/s into a transaction, until it is visible",
        "visible",
        "pace-8",
        only=(ROCKETMQ,),
        at_most_ms=1_000,
    ),
]
"""The cases, in the order of the table."""
