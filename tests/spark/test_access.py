"""Credentials and TLS as options of a data source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coherer import Message
from coherer._net import TlsOptions
from coherer.errors import CohererError, RefusedError, UnavailableError
from coherer.spark.columns import DEFAULT
from coherer.spark.options import FAILFAST, read_options, write_options
from coherer.spark.planning import Range
from coherer.spark.reading import ReadSettings, rows
from coherer.spark.rocketmq import RocketMQQueue
from coherer.spark.rows import SingleRow
from coherer.testing import EmbeddedNode, embedded_node
from tests.private import write_private

PEM = Path(__file__).parents[1] / "net" / "localhost.pem"
ACCOUNTS = """\
accounts:
- accessKey: operator
  secretKey: geheim99
  admin: true
- accessKey: visitor
  secretKey: geheim11
  admin: false
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
"""
SIGNED = {"user": "operator", "password": "geheim99"}
TRUSTED = {"tls": "true", "tlsTrust": str(PEM)}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    home = tmp_path_factory.mktemp("access")
    (home / "conf").mkdir()
    write_private(home / "conf" / "plain_acl.yml", ACCOUNTS)
    secure = {"tls": TlsOptions(certificate=PEM), "tls_required": True}
    ports = {"master_tls_port": 0, "broker_tls_port": 0}
    with embedded_node(home, rocketmq_access=True, **secure, **ports) as node:
        node.create_topic("t", 1)
        yield node


def queue_of(node: EmbeddedNode, options: dict[str, str]) -> RocketMQQueue:
    given = {"url": node.rocketmq_url, "topic": "t", "timeout": "2s", **options}
    assert write_options(given, "rocketmq").access == read_options(given, "rocketmq").access
    return RocketMQQueue(read_options(given, "rocketmq").access)


def send(queue: RocketMQQueue, count: int) -> None:
    singles = [SingleRow(number, Message("t", b"%d" % number)) for number in range(count)]
    for _, error in queue.send_singles(singles, 5):
        raise error


def test_rows_are_written_and_read_with_credentials(node: EmbeddedNode, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("geheim99\n")
    queue = queue_of(
        node, {"user": "operator", "passwordFile": str(tmp_path / "secret"), **TRUSTED}
    )
    try:
        send(queue, 9)
        reading = ReadSettings(DEFAULT, True, FAILFAST, print, print)
        ((_, high),) = queue.bounds("t").values()
        found = rows(queue, [Range("t", "broker-a", 0, 0, high)], reading)
        values = [value for batch in found for value in batch.column("value").to_pylist()]
        assert sorted(values) == [b"%d" % number for number in range(9)]
    finally:
        queue.close()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        pytest.param(SIGNED, UnavailableError, id="plain"),
        pytest.param({**SIGNED, "tls": "true"}, UnavailableError, id="nobody trusted"),
        pytest.param(TRUSTED, RefusedError, id="unsigned"),
        pytest.param({**TRUSTED, "user": "operator", "password": "x"}, RefusedError, id="wrong"),
        pytest.param(
            {**TRUSTED, "user": "visitor", "password": "geheim11"}, RefusedError, id="reads only"
        ),
    ],
)
def test_access_fails_without_credentials(
    node: EmbeddedNode, options: dict[str, str], error: type[CohererError]
) -> None:
    queue = queue_of(node, options)
    try:
        with pytest.raises(error) as caught:
            send(queue, 1)
        assert "geheim" not in str(caught.value)
    finally:
        queue.close()
