"""Configuration files: only regular ones are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coherer._common import regular_files
from coherer._common.regular_files import read_regular
from coherer._server.options.node import NodeOptions
from coherer._server.rocketmq.acl import Access, tools_account
from coherer._store.topic_retention import TopicLimit
from coherer.cli.serve.node_config import from_file
from coherer.console.passwords import read
from coherer.errors import UsageError


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    assert read_regular(path) == b"content"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs")
def test_no_reader_waits_for_a_fifo(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    conf.mkdir()
    for name in ("file", "conf/plain_acl.yml", "conf/tools.yml"):
        os.mkfifo(tmp_path / name, 0o600)
    path = tmp_path / "file"
    for attempt in (
        lambda: from_file(path),
        lambda: read(path),
        lambda: tools_account(tmp_path),
        lambda: Access(tmp_path, 0),
    ):
        with pytest.raises(UsageError, match="not a regular file"):
            attempt()


def test_a_huge_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regular_files, "BYTES_MAX", 10)
    path = tmp_path / "file"
    path.write_bytes(bytes(11))
    with pytest.raises(OSError, match="more than"):
        read_regular(path)


@pytest.mark.parametrize("text", ["a = " + "[" * 50_000, "a = " + "{b=" * 50_000])
def test_deeply_nested_toml_is_an_error_of_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "coherer.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=str(path)):
        from_file(path)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_numbers_that_are_none_are_refused(tmp_path: Path, value: str) -> None:
    path = tmp_path / "coherer.toml"
    path.write_text(f"retention_hours = {value}\n")
    with pytest.raises(UsageError, match="retention_hours"):
        from_file(path)


def test_a_retention_of_very_many_digits_is_refused() -> None:
    with pytest.raises(UsageError, match="too many digits"):
        TopicLimit.parse("9" * 400 + "h")
    with pytest.raises(UsageError, match="finite number"):
        NodeOptions(directory=Path(), retention_hours=float("nan"))
