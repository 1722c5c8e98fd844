"""Clients of RocketMQ in other languages.

They are Node's `ali-ons`, C++ in the PyPI wheel `rocketmq`, and Go's `rocketmq-client-go`, and are
told what to do as the Java clients are (`driver.Driver`). What they need is installed once into the
cache folder of all peers.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from .cache import INSTALL_TIMEOUT_S, UnavailableError, alone, cache_folder, filled, run
from .driver import Driver

HERE = Path(__file__).parent.parent
WHEEL = "rocketmq==0.4.4"


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
    with alone(environment):
        if not (environment / "complete").exists():
            say(f"pip installs {WHEEL} into {environment}")
            shutil.rmtree(environment, ignore_errors=True)
            run([sys.executable, "-m", "venv", str(environment)], INSTALL_TIMEOUT_S)
            run([str(python), "-m", "pip", "install", "-q", WHEEL], INSTALL_TIMEOUT_S)
            run([str(python), "-c", "import rocketmq.client"], INSTALL_TIMEOUT_S)
            (environment / "complete").touch()
    return python


def go_program(say: Callable[[str], None] = _silent) -> Path:
    """The driver, built with Go's client.

    Raises:
        UnavailableError: there is no Go, or the modules cannot be had.
    """
    go = shutil.which("go")
    if go is None:
        raise UnavailableError("there is no `go` on the PATH")
    sources = [HERE / "go" / name for name in ("driver.go", "go.mod", "go.sum")]

    def build(folder: Path) -> None:
        say(f"go builds a driver in {folder.parent}")
        for source in sources:
            shutil.copy(source, folder)
        run([go, "build", "-o", "driver", "."], INSTALL_TIMEOUT_S, folder)

    return filled("go", sources, build) / "driver"


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


class GoDriver(Driver):
    """A process with clients of rocketmq-client-go: kinds producer, transaction and push.

    Args:
        program: from `go_program`.
        folder: of its log.
    """

    def __init__(self, program: Path, folder: Path, name: str = "go-driver") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(name, [str(program)], folder, env={"HOME": str(folder)})
