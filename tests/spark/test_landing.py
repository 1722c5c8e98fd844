"""Each recipe of docs/how-to/landing.md takes every message once, killed at the worst moment.

One process runs all that write with a function. It is killed when each has added a batch to its
table and Spark has not noted that batch yet, so every recipe meets the same batch again. Spark's
own Parquet sink, in contrast, is killed by `test_kill`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coherer.blocking.tubemq import connect
from tests.spark.landing import ATTEMPTS, LATE, ROOT, WAIT_S, send
from tests.spark.recipes import POSTGRES, TARGETS, Names, landed, program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from coherer.testing import EmbeddedNode

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SENT = range(1_000)
MORE = range(1_000, 1_250)
SERVERS = Path("/usr/lib/postgresql")
"""Where Debian's packages have the server, by version."""


def server_programs() -> Path | None:
    """The directory of `initdb` and `pg_ctl`: the newest of Debian's, or that of the PATH."""
    debian = sorted(SERVERS.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    found = str(debian[-1]) if debian else shutil.which("initdb")
    return None if found is None else Path(found).parent


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """How to connect to a PostgreSQL server of these tests; empty without one."""
    programs = server_programs()
    if programs is None:
        yield ""
        return
    folder = Path(tempfile.mkdtemp(prefix="coherer-pg-"))
    prefix: list[str] = []
    if os.geteuid() == 0:  # the server refuses to run as root
        shutil.chown(folder, "postgres")
        prefix = ["runuser", "-u", "postgres", "--"]

    def call(name: str, *words: str) -> None:
        command = [*prefix, str(programs / name), "-D", str(folder / "data"), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr

    try:
        call("initdb", "--auth=trust", "--username=flights", "--no-sync")
        options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
        call("pg_ctl", "start", "--wait", "-l", str(folder / "log"), "-o", options)
        yield f"host={folder} dbname=postgres user=flights"
        call("pg_ctl", "stop", "--mode=immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def halt(url: str, topic: str, database: str, home: Path) -> None:
    """Runs all recipes to the moment between the two commits, and kills them."""
    waiting = {target for target in TARGETS[1:] if target not in POSTGRES or database}
    with (home / "errors").open("wb") as errors:
        job = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.recipes_job", url, topic, database, str(home)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            cwd=ROOT,
        )
    watchdog = threading.Timer(3 * WAIT_S, os.killpg, (job.pid, signal.SIGKILL))
    watchdog.start()
    try:
        assert job.stdout is not None
        for line in job.stdout:
            waiting.discard(line.strip())
            if not waiting:
                break
    finally:
        watchdog.cancel()
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()
    assert not waiting, (home / "errors").read_text()


def to_the_end(target: str, home: Path, url: str, topic: str, database: str) -> Names:
    """Runs a program; again if the machine was too busy to start a worker."""
    from pyspark.errors import StreamingQueryException

    for _ in range(ATTEMPTS):
        try:
            return program(target, home, url, topic, database, None)
        except StreamingQueryException as error:
            if LATE not in str(error):
                raise
    raise AssertionError(f"{LATE}, {ATTEMPTS} times")


@pytest.fixture(scope="module")
def killed(
    coherer_node: EmbeddedNode, database: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """A topic, and the directory with what all recipes had made when they were killed."""
    home = tmp_path_factory.mktemp("landing")
    for target in TARGETS:
        (home / target).mkdir()
    topic = "landing_recipes"
    coherer_node.create_topic(topic, 3)
    with connect(coherer_node.url) as client:
        send(client, topic, SENT)
        halt(coherer_node.url, topic, database, home)
        send(client, topic, MORE)
    return topic, home


@pytest.mark.parametrize("target", TARGETS)
def test_a_recipe_that_is_killed_and_restarted(
    target: str,
    killed: tuple[str, Path],
    spark: SparkSession,
    coherer_node: EmbeddedNode,
    database: str,
) -> None:
    if target in POSTGRES and not database:
        assert not os.environ.get("CI"), "CI lacks Debian's package postgresql"
        pytest.skip("no PostgreSQL server: install Debian's package postgresql")
    topic, home = killed
    for _ in range(2):  # the second run finds nothing to do
        names = to_the_end(target, home / target, coherer_node.url, topic, database)
        assert names["spark"] is spark
        rows = Counter(map(int, landed(target, home / target, database, names)))
        assert rows == Counter([*SENT, *MORE])
