"""A directory belongs to one broker; configuration files fall back to their backup."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coherer._server.node.node import Node
from coherer._store import Draft
from coherer._store.config_files import unsealed
from coherer.errors import DamagedStoreError, UsageError
from tests.server.node_harness import options


async def start_and_stop(directory: Path, **changes: object) -> None:
    async with Node(options(directory, **changes)):
        pass


def identity(directory: Path) -> object:
    return json.loads(unsealed((directory / "config/identity.json").read_bytes()))


async def test_the_first_start_writes_down_whose_directory_it_is(tmp_path: Path) -> None:
    await start_and_stop(tmp_path)
    assert identity(tmp_path) == {
        "brokerId": 1,
        "clusterName": "DefaultCluster",
        "brokerName": "broker-a",
    }
    await start_and_stop(tmp_path)


@pytest.mark.parametrize(
    ("changes", "kind", "option"),
    [
        ({"broker_id": 2}, "broker 1, not to 2", "--broker-id 1"),
        ({"cluster": "other"}, "cluster DefaultCluster, not to other", "--cluster DefaultCluster"),
        ({"broker_name": "b"}, "RocketMQ broker broker-a, not to b", "--broker-name broker-a"),
    ],
)
async def test_another_broker_is_refused_with_a_hint(
    tmp_path: Path, changes: dict[str, object], kind: str, option: str
) -> None:
    await start_and_stop(tmp_path)
    before = identity(tmp_path)
    with pytest.raises(UsageError) as refused:
        await start_and_stop(tmp_path, **changes)
    assert f"belongs to {kind}" in str(refused.value)
    assert option in str(refused.value)
    assert identity(tmp_path) == before
    (tmp_path / "config/identity.json").unlink()
    (tmp_path / "config/identity.json.bak").unlink()
    await start_and_stop(tmp_path, **changes)
    assert identity(tmp_path) != before


async def test_a_protocol_enabled_later_adds_its_names(tmp_path: Path) -> None:
    await start_and_stop(tmp_path, rocketmq_port=None)
    assert identity(tmp_path) == {"brokerId": 1}
    await start_and_stop(tmp_path, broker_name="b")
    await start_and_stop(tmp_path, rocketmq_port=None)
    assert identity(tmp_path) == {
        "brokerId": 1,
        "clusterName": "DefaultCluster",
        "brokerName": "b",
    }


async def test_the_file_is_there_twice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also in a directory of an older version. It is never written again."""
    await start_and_stop(tmp_path)
    path = tmp_path / "config/identity.json"
    whole = path.read_bytes()
    path.with_name("identity.json.bak").unlink()
    await start_and_stop(tmp_path)
    assert path.with_name("identity.json.bak").read_bytes() == whole
    path.write_bytes(whole.replace(b"broker-a", b"broker-c"))
    await start_and_stop(tmp_path)
    assert path.read_bytes() == whole
    assert "identity.json cannot be read (its checksum is wrong" in caplog.text


FILES = [
    "topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json",
    "tubemqMaster.json", "kvConfig.json", "namesrv.properties", "broker.properties",
    "identity.json",
]  # fmt: skip


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("wrong", ["broken", "empty", "missing"])
async def test_each_file_falls_back_to_the_one_before_and_says_so(
    tmp_path: Path, name: str, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    await start_and_stop(tmp_path)
    path = tmp_path / "config" / name
    backup = path.with_name(f"{name}.bak")
    good = path.read_bytes() if path.exists() else EXAMPLES[name]
    backup.write_bytes(good)
    broken = b"\xff{ broken"
    path.write_bytes(b"" if wrong == "empty" else broken)
    if wrong == "missing":
        path.unlink()
    caplog.clear()
    await start_and_stop(tmp_path)
    lines = [record for record in caplog.records if f"{name}.bak" in record.getMessage()]
    assert [line.levelname for line in lines] == ["WARNING"]
    assert f"config/{name} " in lines[0].getMessage()
    path.write_bytes(broken)
    backup.write_bytes(broken)
    with pytest.raises(DamagedStoreError, match=name) as refused:
        await start_and_stop(tmp_path)
    assert f"Restore a copy of {name}" in str(refused.value)


EXAMPLES = {
    "topics.json": b'{"topicConfigTable":{}}',
    "subscriptionGroup.json": b'{"subscriptionGroupTable":{}}',
    "consumerOffset.json": b'{"offsetTable":{}}',
    "delayOffset.json": b'{"offsetTable":{}}',
    "kvConfig.json": b'{"configTable":{}}',
    "namesrv.properties": b"orderMessageEnable=false\n",
    "broker.properties": b"brokerPermission=6\n",
}


async def test_damage_is_a_warning_after_a_clean_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Node(options(tmp_path, segment_bytes=4 << 20)) as node:
        assert node.core is not None
        for _ in range(12):
            node.core.store.append([Draft("t", 0, bytes(1 << 20), b"")])
    (tmp_path / "commitlog" / f"{4 << 20:020}").unlink()
    caplog.clear()
    with caplog.at_level("INFO"):
        await start_and_stop(tmp_path)
    lines = [record for record in caplog.records if "are lost" in record.getMessage()]
    assert [line.levelname for line in lines] == ["WARNING"]
    said = lines[0].getMessage()
    assert str(tmp_path) in said
    assert f"Bytes {4 << 20} to {8 << 20} of the log are lost: a file is missing" in said
    assert "Lost messages: 3;" in said
    assert "restore them" in said
