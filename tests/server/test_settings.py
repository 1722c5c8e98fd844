"""Settings: names, defaults and help of an options struct, and conversion of users' values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from coherer._net import TlsOptions
from coherer._server.options.node import MAXIMUMS, PORTS, SETTINGS, NodeOptions
from coherer._server.options.settings import Section, Setting, settings

FIELDS = {one.name: one for one in SETTINGS}


class Inner(msgspec.Struct):
    """A section."""

    file: Path | None = None
    hidden: int = 0


class Options(msgspec.Struct, kw_only=True):
    """An options struct."""

    directory: Annotated[Path, Setting("Files.", panel="A", default="here")]
    max_bytes: Annotated[int, Setting("Limit.", panel="A")] = 2 << 20
    wait_ms: Annotated[int | None, Setting("Wait.")] = 1_500
    mode: Annotated[Literal["fast", "safe"], Setting("Mode.", panel="A", flag="--how")] = "fast"
    names: Annotated[frozenset[str], Setting("Names.", panel="A")] = frozenset()
    inner: Annotated[Inner | None, Section({"file": Setting("A file.", panel="A")})] = None


def test_settings_describe_the_fields() -> None:
    described = [
        (one.name, one.flag, one.repeated, one.choices, one.help) for one in settings(Options)
    ]
    assert described == [
        ("directory", "--directory", False, (), "Files. Default: here."),
        ("max_bytes", "--max-bytes", False, (), "Limit. Default: 2 MiB."),
        ("wait_ms", "--wait-ms", False, (), "Wait. Default: 1,500."),
        ("mode", "--how", False, ("fast", "safe"), "Mode. Default: fast."),
        ("names", "--names", True, (), "Names."),
        ("inner.file", "--inner-file", False, (), "A file."),
    ]


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("directory", "data", Path("data")),
        ("broker_port", 1, 1),
        ("broker_port", "1", 1),
        ("admin_port", None, None),
        ("roles", ["master"], frozenset({"master"})),
        ("users", {"a": "b"}, {"a": "b"}),
        ("retention_hours", 1.5, 1.5),
        ("tls.certificate", "c.pem", Path("c.pem")),
    ],
)
def test_values_of_a_configuration_file_are_converted(
    name: str, given: object, value: object
) -> None:
    assert FIELDS[name].convert(given) == value


@pytest.mark.parametrize(("name", "given"), [("broker_port", "x"), ("flush", "never")])
def test_values_of_another_type_are_refused(name: str, given: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        FIELDS[name].convert(given)


def test_every_option_of_a_node_is_a_setting() -> None:
    assert {name.partition(".")[0] for name in FIELDS} == set(NodeOptions.__struct_fields__)
    tls = {name.partition(".")[2] for name in FIELDS if name.startswith("tls.")}
    assert tls == set(TlsOptions.__struct_fields__) - {"verify"}
    assert {name for name in NodeOptions.__struct_fields__ if name.endswith("_port")} == {
        *PORTS,
        "advertised_broker_port",
        "advertised_admin_port",
        "advertised_rocketmq_port",
    }
    assert set(MAXIMUMS) == {
        "broker_id",
        "brokers",
        "port_step",
        "zookeeper_session_ms",
        "connections_max",
        "default_partitions",
        "heartbeat_ms",
    }
