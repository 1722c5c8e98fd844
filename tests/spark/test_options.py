"""Options: parsing, and clear errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from coherer.errors import UsageError
from coherer.spark.columns import DEFAULT
from coherer.spark.files import file_options
from coherer.spark.options import (
    ACCESS_TABLE,
    READ_TABLE,
    WRITE_TABLE,
    Access,
    ReadOptions,
    WriteOptions,
    read_options,
    write_options,
)

URL = "tubemq://127.0.0.1:8715"


def read(**options: str) -> ReadOptions:
    return read_options({"url": URL, **options})


def test_the_required_options_suffice() -> None:
    options = read(topic="flights")
    assert options == ReadOptions(access=Access(url=URL), topics=("flights",))
    assert options.fail_on_data_loss


def test_every_option_is_parsed() -> None:
    options = read(
        topicsPattern="f.*",
        mode="permissive",
        maxBytesPerTrigger="2m",
        STARTINGOFFSETS=" Earliest ",
        endingOffsets='{"f": {"1:0": 4}}',
        failOnDataLoss="FALSE",
        minPartitions="2",
        maxPartitions="9",
        maxRecordsPerPartition="1000",
        maxOffsetsPerTrigger="50",
        minOffsetsPerTrigger="10",
        maxTriggerDelay="90s",
        includeHeaders="true",
        group="g",
        commitOffsets="true",
        timeout="500 ms",
        user="u",
        password="p",
        tls="true",
    )
    assert options == ReadOptions(
        access=Access(url=URL, user="u", password="p", tls=True, timeout_ms=500),
        topics_pattern="f.*",
        starting_offsets="earliest",
        ending_offsets={"f": {"1:0": 4}},
        fail_on_data_loss=False,
        mode="PERMISSIVE",
        min_partitions=2,
        max_partitions=9,
        max_records_per_partition=1000,
        max_offsets_per_trigger=50,
        max_bytes_per_trigger=2 << 20,
        min_offsets_per_trigger=10,
        max_trigger_delay_ms=90_000,
        include_headers=True,
        columns=(*DEFAULT, "properties", "error"),
        group="g",
        commit_offsets=True,
    )


def test_partitions_times_and_columns() -> None:
    options = read(
        assign='{"f": ["1:0", 2]}',
        startingOffsetsByTimestamp='{"f": {"1:0": 7}}',
        endingOffsetsByTimestamp='{"f": 9}',
        startingOffsetsByTimestampStrategy="LATEST",
        columns="Value, offset",
    )
    assert options.topics == ("f",)
    assert options.assigned == {"f": ("1:0", 2)}
    assert (options.starting_times, options.ending_times) == ({"f": {"1:0": 7}}, {"f": {"*": 9}})
    assert options.unmatched == "latest"
    assert options.columns == ("value", "offset")


def test_options_add_their_columns_to_the_chosen_ones() -> None:
    both = {"includeHeaders": "true", "mode": "permissive"}
    assert read(topic="f", columns="value", **both).columns == ("value", "properties", "error")
    named = read(topic="f", columns="error,properties,value", **both)
    assert named.columns == ("error", "properties", "value")
    assert read(topic="f", **both).columns[-2:] == ("properties", "error")


def test_the_default_mode_follows_failOnDataLoss() -> None:  # noqa: N802
    assert read(topic="f").mode == "FAILFAST"
    assert read(topic="f", failOnDataLoss="false").mode == "DROP"
    assert read(topic="f", failOnDataLoss="false", mode="FAILFAST").mode == "FAILFAST"


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("subscribe", "Coherer calls it topic"),
        ("subscribePattern", "Coherer calls it topicsPattern"),
        ("kafka.bootstrap.servers", "Coherer calls it url"),
        ("groupIdPrefix", "group of their own"),
        ("kafka.max.poll.records", "no Kafka client"),
    ],
)
def test_options_of_kafka_are_answered_with_coherers(name: str, answer: str) -> None:
    with pytest.raises(UsageError, match=f"Unknown option '{name.lower()}'.*{answer}"):
        read(topic="f", **{name: "x"})


def test_the_path_is_the_topic() -> None:
    assert read(path="a,b , a").topics == ("a", "b")
    with pytest.raises(UsageError, match="twice"):
        read(path="a", topic="b")


def test_options_that_spark_adds_are_ignored() -> None:
    assert write_options({"url": URL, "checkpointLocation": "/x", "queryName": "q"}).topic is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "one of topic, topicsPattern and assign"),
        ({"topic": "a", "topicsPattern": "b"}, "one of topic, topicsPattern and assign"),
        ({"topic": "a", "assign": '{"a": [1]}'}, "one of topic, topicsPattern and assign"),
        ({"assign": '{"a": [1.5]}'}, "Option assign"),
        ({"assign": '{"a": ["x"]}'}, "'x' is not a partition"),
        ({"assign": '{"a": []}'}, "a topic has no partition"),
        ({"topic": " , "}, "names no topic"),
        ({"topicsPattern": "("}, "not a regular expression"),
        ({"topic": "a", "startingOffset": "latest"}, "Did you mean startingOffsets"),
        ({"topic": "a", "zzz": "1"}, "Options: url"),
        ({"topic": "a", "startingOffsets": "first"}, "Option startingOffsets"),
        ({"topic": "a", "startingOffsetsByTimestamp": '{"a": -1}'}, "milliseconds since 1970"),
        ({"topic": "a", "startingOffsetsByTimestamp": '{"a": {"x": 1}}'}, "not a partition"),
        ({"topic": "a", "endingOffsetsByTimestamp": '{"a": 1767225600000000}'}, "milliseconds"),
        ({"topic": "a", "startingOffsetsByTimestampStrategy": "latest"}, "needs startingOffsetsBy"),
        ({"topic": "a", "timeout": "0s"}, "Option timeout: '0s' is not 10 ms to 10 min"),
        ({"topic": "a", "timeout": "1h"}, "Option timeout: '1h' is not 10 ms to 10 min"),
        ({"topic": "a", "admin": "ftp://h:1"}, "not a valid URL of an administration"),
        ({"topic": "a", "maxBytesPerTrigger": "10x"}, "not a size such as"),
        ({"topic": "a", "maxBytesPerTrigger": "0"}, "not a size such as"),
        ({"topic": "a", "mode": "ignore"}, "not one of PERMISSIVE, FAILFAST, DROP"),
        ({"topic": "a", "columns": "ofset"}, "no column 'ofset'; did you mean offset"),
        ({"topic": "a", "columns": "zzzzz"}, "it has topic, broker"),
        ({"topic": "a", "columns": "value,VALUE"}, "a column twice"),
        ({"topic": "a", "columns": " , "}, "names no column"),
        ({"topic": "a", "columns": "value,error"}, "error needs mode=PERMISSIVE"),
        ({"topic": "a", "failOnDataLoss": "no"}, "neither true nor false"),
        ({"topic": "a", "minPartitions": "0"}, "not a number above 0"),
        ({"topic": "a", "maxOffsetsPerTrigger": "-1"}, "not a number above 0"),
        ({"topic": "a", "maxOffsetsPerTrigger": "1e3"}, "not a number above 0"),
        ({"topic": "a", "maxTriggerDelay": "5"}, "not a duration"),
        ({"topic": "a", "commitOffsets": "true"}, "go together"),
        ({"topic": "a", "group": "g"}, "go together"),
        ({"topic": "a", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "larger"),
        ({"topic": "a", "minPartitions": "9", "maxPartitions": "8"}, "larger"),
        ({"topic": "a", "url": "http://x"}, "is not a valid URL of a cluster"),
        ({"topic": "a", "url": ""}, "is not a valid URL of a cluster"),
        ({"topic": "a", "url": "tubemq://h:x"}, "not a valid host:port"),
        ({"topic": "a", "group": " "}, "empty"),
        ({"topic": "a", "password": "p", "passwordFile": "f"}, "Give one of password"),
        ({"topic": "a", "passwordEnv": "E", "passwordFile": "f"}, "Give one of password"),
        ({"topic": "a", "passwordEnv": "E"}, "go together"),
        ({"topic": "a", "user": "u"}, "go together"),
        ({"topic": "a", "passwordFile": "f"}, "go together"),
        ({"topic": "a", "tlsTrust": "f"}, "Option tlsTrust needs tls=true"),
        ({"topic": "a", "tls": "false", "tlsKey": "f"}, "Option tlsKey needs tls=true"),
    ],
)
def test_mistakes_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_options({"url": URL, **options})


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_the_url_is_required(protocol: str) -> None:
    with pytest.raises(UsageError, match=f"url is missing. Write {protocol}://"):
        read_options({"topic": "a"}, protocol)


def test_an_option_of_one_protocol_is_unknown_to_the_other() -> None:
    options = {"topic": "a", "admin": "http://h:8080"}
    assert read_options({"url": URL, **options}).access.admin == "http://h:8080"
    with pytest.raises(UsageError, match="Unknown option 'admin'"):
        read_options({"url": "rocketmq://h:9876", **options}, "rocketmq")
    assert read_options({"url": "rocketmqs://h;i", "topic": "a"}, "rocketmq").topics == ("a",)


def test_reading_options_are_unknown_to_writing() -> None:
    with pytest.raises(UsageError, match="Unknown option"):
        write_options({"url": URL, "startingOffsets": "latest"})
    assert write_options({"url": URL, "topic": "a", "window": "7"}).window == 7
    only_reading = {"admin": "http://h:8080", "adminToken": "secret", "onDisk": "true"}
    for name, value in only_reading.items():
        with pytest.raises(UsageError, match=f"{name} is for reading"):
            write_options({"url": URL, "topic": "a", name: value})


@pytest.mark.parametrize("name", ["checkpointLocation", "queryName", "outputMode"])
def test_options_of_a_query_are_refused_where_it_reads(name: str) -> None:
    """A stream whose checkpoint is named here would start over with each run."""
    with pytest.raises(UsageError, match=f"Option {name} has no effect on a read"):
        read_options({"url": URL, "topic": "a", name: "/checkpoint"})
    with pytest.raises(UsageError, match=f"Option {name} has no effect on a read"):
        file_options({"path": "file:/store", "topic": "a", name: "/checkpoint"}, "rocketmq")


def test_tls_files_need_an_encrypted_url() -> None:
    options = {"url": "tubemqs://h:1", "topic": "a", "tlsTrust": "f"}
    assert read_options(options).access.tls_trust == "f"


def test_repr_omits_the_password(tmp_path: Path) -> None:
    assert "geheim" not in repr(read(topic="a", user="u", password="geheim"))
    (tmp_path / "secret").write_text("geheim\n")
    hidden = read(topic="a", user="u", passwordFile=str(tmp_path / "secret"))
    assert hidden.access.secret() == "geheim"
    assert read(topic="a").access.secret() is None


@pytest.mark.parametrize(
    ("table", "kind"),
    [(ACCESS_TABLE, Access), (READ_TABLE, ReadOptions), (WRITE_TABLE, WriteOptions)],
)
def test_the_tables_and_the_structs_agree(
    table: tuple[object, ...], kind: type[Access | ReadOptions | WriteOptions]
) -> None:
    fields = {option.field for option in table}  # type: ignore[attr-defined]
    assert fields == set(kind.__struct_fields__) - {"access"}
    assert all(option.meaning.endswith((".", ")")) for option in table)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingTimestamp": "yesterday"}, "Option startingTimestamp: 'yesterday' is not a time"),
        ({"endingTimestamp": "2026-11-21T06:00:00"}, "has no time zone"),
        ({"startingTimestamp": "9" * 30}, "is not a time"),
        ({"startingTimestamp": "1", "startingOffsets": "latest"}, "one of startingOffsets"),
        ({"endingTimestamp": "1", "endingOffsets": "latest"}, "one of endingOffsets"),
        ({"endingTimestamp": "1", "endingOffsetsByTimestamp": '{"a": 1}'}, "one of endingOffsets"),
    ],
)
def test_invalid_times_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_options({"url": "rocketmq://h:1", "topic": "a", **options}, "rocketmq")


def test_a_password_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"url": URL, "topic": "a", "user": "u", "passwordEnv": "QUEUE_PASSWORD"}
    access = read_options(given).access
    monkeypatch.setenv("QUEUE_PASSWORD", "p")
    assert access.secret() == "p"
    monkeypatch.delenv("QUEUE_PASSWORD")
    with pytest.raises(UsageError, match=r"has no variable QUEUE_PASSWORD. Set it for the driver"):
        access.secret()


def test_an_unreadable_password_file_is_named(tmp_path: Path) -> None:
    given = {"url": URL, "topic": "a", "user": "u", "passwordFile": str(tmp_path / "none")}
    with pytest.raises(UsageError, match=r"cannot read .*none: No such file"):
        read_options(given).access.secret()


def test_a_password_file_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"geheim\xe4\n")
    given = {"url": URL, "topic": "a", "user": "u", "passwordFile": str(file)}
    with pytest.raises(
        UsageError, match=r"passwordFile: .*secret, read by .* is not UTF-8"
    ) as told:
        read_options(given).access.secret()
    assert told.value.__cause__ is None
    assert told.value.__suppress_context__, "the traceback would show the password"
