"""Java and the jars of its systems, from one cache folder that Maven fills once.

The folder is outside the checkout: `COHERER_PEERS_CACHE`, or `~/.cache/coherer-peers`. What is in
it is named after the digest of what made it, so a changed POM or driver makes a new folder and an
unchanged one needs neither Maven nor the network.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from .process import ENVIRONMENT

JAVA_SOURCES = Path(__file__).parent.parent / "java"
# Copied by its name, because the parent of its POM is not on Central.
ARTIFACTS = {"tubemq": ("org.apache.inlong:tubemq-server:2.4.0",)}
DRIVERS = {
    "rocketmq-client": "rocketmq-client",
    "rocketmq-server": "rocketmq-server",  # it has none
    "rocketmq-proxy": "rocketmq-proxy",  # nor has this
    "tubemq-client": "tubemq",
}
"""The folders of the drivers for clients of many releases."""
_LEASH_ONLY = {"rocketmq-server", "rocketmq-proxy", "kafka"}
JAVA_RELEASE = 11
INSTALL_TIMEOUT_S = 1_800
"""For what hangs: slow machines need minutes for what others do in seconds."""
JVM_FLAGS = (
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
)
# Half the processor time of a start: the second compiler is for servers that stay.
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class UnavailableError(Exception):
    """Why the Java system cannot be had here."""


@dataclass(frozen=True)
class JavaSystem:
    """Where a Java system lies.

    Args:
        name: tubemq, rocketmq or kafka.
        java: the `java` command.
        jars: folder of all jars.
        classes: folder of the compiled drivers.
        version: first line of `java -version`.
        jvm_flags: further ones for every process.
    """

    name: str
    java: str
    jars: Path
    classes: Path
    version: str
    jvm_flags: tuple[str, ...] = ()

    def short_lived(self) -> JavaSystem:
        """The same for processes that end with their tests."""
        return replace(self, jvm_flags=SHORT_LIVED)

    def command(
        self,
        main: str,
        *args: str,
        heap_mb: int = 512,
        log: str = "info",
        flags: Sequence[str] = (),
    ) -> list[str]:
        """The command line that runs one main class; `log` is a level of log4j."""
        return [
            self.java,
            *JVM_FLAGS,
            *self.jvm_flags,
            f"-Xmx{heap_mb}m",
            f"-Xms{min(heap_mb, 128)}m",
            *flags,
            f"-Dpeer.log={log}",
            f"-Dlog4j2.configurationFile={JAVA_SOURCES / 'log4j2.xml'}",
            "-cp",
            os.pathsep.join([str(self.classes), str(self.jars / "*")]),
            main,
            *args,
        ]


def cache_folder() -> Path:
    """The cache folder of all peers."""
    given = os.environ.get("COHERER_PEERS_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "coherer-peers"


def prepare(name: str, say: Callable[[str], None] = lambda _text: None) -> JavaSystem:
    """Finds Java, fills the cache where it is empty, and compiles the drivers.

    Args:
        name: `tubemq`, `rocketmq` or `kafka`, a folder of `tests/interop/java`.
        say: told of progress.

    Raises:
        UnavailableError: no JDK, or the jars are neither here nor to be had.
    """
    java, version = _find_java()
    jars = jars_of(name, say)
    sources = _sources(name, JAVA_SOURCES / name)
    made_of = [JAVA_SOURCES / name / "pom.xml", *sources]
    classes = filled(f"{name}-drivers", made_of, lambda to: _compile(sources, jars, to, say))
    return JavaSystem(name, java, jars, classes, version)


def jars_of(name: str, say: Callable[[str], None] = lambda _text: None) -> Path:
    """The folder with the jars of a POM; `spark-kafka` has nothing else.

    Raises:
        UnavailableError: the jars are neither here nor to be had.
    """
    pom = JAVA_SOURCES / name / "pom.xml"
    return filled(name, [pom], lambda folder: _copy_jars(name, pom, folder, say))


def _sources(name: str, drivers: Path) -> list[Path]:
    common = "Leash.java" if name in _LEASH_ONLY else "*.java"
    return sorted([*(JAVA_SOURCES / "common").glob(common), *drivers.glob("*.java")])


def prepare_release(
    name: str, release: str, say: Callable[[str], None] = lambda _text: None
) -> JavaSystem:
    """The same for one release of many.

    Args:
        name: `rocketmq-client`, `rocketmq-server`, `rocketmq-proxy` or `tubemq-client`.
        release: which one.
        say: told of progress.

    Raises:
        UnavailableError: no JDK, or the jars are neither here nor to be had.
    """
    java, version = _find_java()
    pom = JAVA_SOURCES / name / "pom.xml"
    full = f"{name}-{release}"
    jars = filled(full, [pom], lambda folder: _copy_jars(full, pom, folder, say, release))
    sources = _sources(name, JAVA_SOURCES / DRIVERS[name])
    made_of = [pom, *sources]
    classes = filled(f"{full}-drivers", made_of, lambda to: _compile(sources, jars, to, say))
    return JavaSystem(full, java, jars, classes, version).short_lived()


def _find_java() -> tuple[str, str]:
    java = shutil.which("java")
    if java is None:
        raise UnavailableError("there is no `java` on the PATH")
    text = subprocess.run(
        [java, "-version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=ENVIRONMENT,
    ).stderr
    found = re.search(r'version "(\d+)', text)
    if found is None or int(found[1]) < JAVA_RELEASE:
        raise UnavailableError(f"Java {JAVA_RELEASE} or newer is needed, found: {text.strip()}")
    return java, text.splitlines()[0]


def filled(name: str, made_of: Sequence[Path], fill: Callable[[Path], None]) -> Path:
    """A folder of the cache, filled once for this content of these files."""
    folder = cache_folder() / f"{name}-{_digest(name, made_of)}"
    _make(folder, fill)
    return folder


def _digest(name: str, files: Sequence[Path]) -> str:
    digest = hashlib.sha256(" ".join(ARTIFACTS.get(name.removesuffix("-drivers"), ())).encode())
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def _make(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fills a new folder beside the wanted one and renames it: a half-filled one is never seen."""
    with alone(folder):
        if folder.is_dir():
            return
        fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
        try:
            fill(fresh)
            fresh.rename(folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Has one process fill a folder of the cache while others that want it wait."""
    import fcntl  # Windows, where these tests are collected but not run, has none

    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _copy_jars(
    name: str, pom: Path, folder: Path, say: Callable[[str], None], release: str | None = None
) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise UnavailableError(
            f"the jars of {name} are not in the cache, and there is no `mvn` to get them"
        )
    say(f"Maven copies the jars of {name} to {folder.parent}")
    to = f"-DoutputDirectory={folder}"
    base = [maven, "-B", "-q", "-f", str(pom)]
    if release is not None:
        base.append(f"-Drelease={release}")
    run([*base, "dependency:copy-dependencies", "-DincludeScope=runtime", to], INSTALL_TIMEOUT_S)
    for artifact in ARTIFACTS.get(name, ()):
        run([*base, "dependency:copy", f"-Dartifact={artifact}", to], INSTALL_TIMEOUT_S)


def _compile(sources: Sequence[Path], jars: Path, to: Path, say: Callable[[str], None]) -> None:
    javac = shutil.which("javac")
    if javac is None:
        raise UnavailableError("there is no `javac` on the PATH")
    say("javac compiles the drivers")
    command = [javac, "--release", str(JAVA_RELEASE), "-cp", str(jars / "*"), "-d", str(to)]
    run([*command, *map(str, sources)], INSTALL_TIMEOUT_S)


def run(command: Sequence[str], timeout_s: float, folder: Path | None = None) -> None:
    """Runs a command to its end, in this folder or the current one.

    Raises:
        UnavailableError: it failed, or took too long.
    """
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            cwd=folder,
            env=ENVIRONMENT,
        )
    except subprocess.TimeoutExpired as late:
        raise UnavailableError(f"`{command[0]}` took more than {timeout_s:.0f} s") from late
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise UnavailableError(f"`{' '.join(command[:6])} …` failed:\n{said}")
