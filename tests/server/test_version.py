"""The version of a directory: written, upgraded, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coherer import __version__
from coherer._server.node.version import FORMAT, check_version, upgrade
from coherer.cli.main import app
from coherer.errors import DamagedStoreError, UsageError
from coherer.testing import embedded_node
from coherer.testing.disk import FaultyFiles


@pytest.mark.parametrize("roles", [{"master"}, {"master", "broker"}])
def test_a_node_writes_the_version(tmp_path: Path, roles: set[str]) -> None:
    with embedded_node(tmp_path, roles=frozenset(roles)):
        pass
    path, copy = tmp_path / "version.json", tmp_path / "version.json.bak"
    content = path.read_bytes()
    found = json.loads(content)
    assert (found["format"], found["coherer"]) == (FORMAT, __version__)
    for one in (path, copy):
        one.unlink()  # as an older version, or a Java broker, leaves it
    with embedded_node(tmp_path, roles=frozenset(roles)):
        assert check_version(tmp_path).format == FORMAT
    assert path.read_bytes() == copy.read_bytes() == content


def test_a_lost_or_damaged_version_is_taken_from_its_copy(tmp_path: Path) -> None:
    with embedded_node(tmp_path):
        pass
    path, copy = tmp_path / "version.json", tmp_path / "version.json.bak"
    content = path.read_bytes()
    for damage in (content.replace(b'"format":1', b'"format":0'), b"", b'{"formau":1}'):
        path.write_bytes(damage)
        with embedded_node(tmp_path):
            assert path.read_bytes() == content
    path.write_bytes(content)
    for one in (copy, path):  # a copy that an older version did not make, too
        one.unlink()
        with embedded_node(tmp_path):
            assert path.read_bytes() == copy.read_bytes() == content


def test_a_full_disk_does_not_keep_a_node_from_starting_without_the_copy(tmp_path: Path) -> None:
    with embedded_node(tmp_path):
        pass
    path, copy = tmp_path / "version.json", tmp_path / "version.json.bak"
    copy.unlink()
    files = FaultyFiles()
    files.set_full(True)
    upgrade(tmp_path, files)
    assert not copy.exists()
    files.set_full(False)
    upgrade(tmp_path, files)
    assert copy.read_bytes() == path.read_bytes()


def test_a_newer_directory_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    with embedded_node(tmp_path):
        pass
    text = json.dumps({"format": FORMAT + 1, "coherer": "9.0.0", "more": True})
    (tmp_path / "version.json").write_text(text)
    refused = pytest.raises(UsageError, match=r"written by Coherer 9\.0\.0")
    with refused as caught, embedded_node(tmp_path):
        pass
    assert "Use Coherer 9.0.0 or newer" in caught.value.hint
    backup = str(tmp_path.parent / f"{tmp_path.name}-backup")
    for words in (["verify"], ["verify", "--repair"], ["backup", backup, "--directory"]):
        result = CliRunner().invoke(app, [*words, str(tmp_path)])
        assert result.exit_code == 2
        assert "9.0.0" in result.stderr
    assert (tmp_path / "version.json").read_text() == text


def test_a_damaged_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "version.json").write_text("{")
    with pytest.raises(DamagedStoreError, match="cannot be read"):
        check_version(tmp_path)


def test_a_restore_that_has_not_finished_is_refused(tmp_path: Path) -> None:
    (tmp_path / "restore-incomplete").touch()
    with pytest.raises(UsageError, match="A restore into"):
        check_version(tmp_path)
