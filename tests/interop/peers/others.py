"""Clients of RocketMQ in other languages: Node's `ali-ons`, and C++ in the PyPI wheel `rocketmq`.

Both are told what to do as the Java clients are (`driver.Driver`). What they need is installed once
into the cache folder of all peers.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from .cache import UnavailableError, cache_folder, filled, run
from .driver import Driver

HERE = Path(__file__).parent.parent
WHEEL = "rocketmq==0.4.4"
INSTALL_TIMEOUT_S = 300


def _silent(_text: str) -> None:
    """Nobody wants to know."""


def node_modules(say: Callable[[str], None] = _silent) -> Path:
    """The folder `node_modules` with ali-ons.

    Raises:
        UnavailableError: there is no Node or no npm, or the package cannot be had.
    """
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise UnavailableError("there is no `node` with `npm` on the PATH")
    package = HERE / "node" / "package.json"

    def install(folder: Path) -> None:
        say(f"npm installs ali-ons into {folder.parent}")
        shutil.copy(package, folder)
        run(
            [npm, "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(folder)],
            INSTALL_TIMEOUT_S,
        )

    return filled("node", [package], install) / "node_modules"


def cpp_python(say: Callable[[str], None] = _silent) -> Path:
    """The Python of an environment that holds the C++ client.

    Raises:
        UnavailableError: the wheel cannot be had, or its library does not run here.
    """
    # Not made aside and renamed: an environment does not work from another place.
    environment = cache_folder() / f"cpp-{WHEEL.replace('==', '-')}-py{sys.version_info.minor}"
    python = environment / "bin" / "python"
    if not (environment / "complete").exists():
        say(f"pip installs {WHEEL} into {environment}")
        shutil.rmtree(environment, ignore_errors=True)
        run([sys.executable, "-m", "venv", str(environment)], INSTALL_TIMEOUT_S)
        run([str(python), "-m", "pip", "install", "-q", WHEEL], INSTALL_TIMEOUT_S)
        run([str(python), "-c", "import rocketmq.client"], 60)
        (environment / "complete").touch()
    return python


class NodeDriver(Driver):
    """A Node process with clients: kinds producer and push.

    Args:
        modules: from `node_modules`.
        folder: of its log.
    """

    def __init__(self, modules: Path, folder: Path, name: str = "node-driver") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        command = ["node", str(HERE / "node" / "driver.js")]
        super().__init__(name, command, folder, env={"NODE_PATH": str(modules)})


class CppDriver(Driver):
    """A process with clients of the wheel: kinds producer, push and pull.

    Args:
        python: from `cpp_python`.
        folder: of its log and files.
    """

    def __init__(self, python: Path, folder: Path, name: str = "cpp-driver") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        command = [str(python), str(HERE / "cpp" / "driver.py")]
        super().__init__(name, command, folder, env={"HOME": str(folder), "PYTHONPATH": ""})
