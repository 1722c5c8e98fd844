"""kombu's own integration tests, from the source archive of the installed version."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

import kombu
import pytest

from tests.integrations.kombu.conftest import Connect

CACHE: Final = Path.home() / ".cache/coherer-peers"
VERSION: Final = importlib.metadata.version("kombu")
MEMBER: Final = f"kombu-{VERSION}/t/integration/common.py"


def source() -> Path:
    """The file with kombu's tests; it is downloaded once."""
    found = CACHE / MEMBER
    if not found.exists():
        with tempfile.TemporaryDirectory() as directory:
            wanted = ["--no-deps", "--no-binary", "kombu", f"kombu=={VERSION}"]
            command = [sys.executable, "-m", "pip", "download", "-q", "-d", directory, *wanted]
            try:
                subprocess.run(command, check=True, timeout=120)
            except (subprocess.SubprocessError, OSError) as error:
                if "CI" in os.environ:
                    raise
                pytest.skip(f"kombu's source archive: {error}", allow_module_level=True)
            [archive] = Path(directory).glob("kombu-*.tar.gz")
            with tarfile.open(archive) as opened:
                member = opened.extractfile(MEMBER)
                assert member is not None
                text = member.read()
        found.parent.mkdir(parents=True, exist_ok=True)
        partial = found.with_suffix(f".{os.getpid()}")
        partial.write_bytes(text)
        partial.replace(found)  # several processes may do this
    return found


def load() -> Any:
    """The module with kombu's tests."""
    spec = importlib.util.spec_from_file_location("kombu_common_tests", source())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


common = load()

CLOSED_PORT: Final = 9  # discard: nobody serves it


@pytest.fixture
def connection(connect: Connect) -> kombu.Connection:
    return connect()


@pytest.fixture
def invalid_connection() -> kombu.Connection:
    return kombu.Connection(f"rocketmq://127.0.0.1:{CLOSED_PORT}")


@pytest.fixture
def failover_connection(connect: Connect, coherer_rocketmq_url: str) -> kombu.Connection:
    return connect(f"rocketmq://127.0.0.1:{CLOSED_PORT};{coherer_rocketmq_url}")


class TestBasicFunctionality(common.BasicFunctionality):  # type: ignore[misc]
    pass


class TestExchangeTypes(common.BaseExchangeTypes):  # type: ignore[misc]
    pass


class TestTimeToLive(common.BaseTimeToLive):  # type: ignore[misc]
    pass


class TestPriority(common.BasePriority):  # type: ignore[misc]
    pass


class TestMessage(common.BaseMessage):  # type: ignore[misc]
    pass


class TestFailover(common.BaseFailover):  # type: ignore[misc]
    pass


class TestEventLoop(common.BaseEventLoop):  # type: ignore[misc]
    pass
