"""`coherer audit`, `replay` and `export` on a Spark Connect server, and under `spark-submit`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as arrow
import pytest

from coherer import Message
from coherer.arrow import scan
from coherer.blocking import connect
from coherer.spark import use_java
from coherer.testing import EmbeddedNode, embedded_node
from tests.private import write_private

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "operate-topics.md").read_text("utf-8")
COUNT = 300
TOPIC, AGAIN = "flights", "flights-again"
TIMEOUT_S = 300
USER, SECRET = "operator", "geheim-und-lang"
ACCOUNTS = f"""\
accounts:
- accessKey: {USER}
  secretKey: {SECRET}
  admin: true
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    """A node that wants a password, with a topic."""
    home = tmp_path_factory.mktemp("jobs") / "node"
    (home / "conf").mkdir(parents=True)
    write_private(home / "conf" / "plain_acl.yml", ACCOUNTS)
    with embedded_node(home, rocketmq_access=True) as made:
        for name in (TOPIC, AGAIN):
            made.create_topic(name, 2)
        with (
            connect(made.rocketmq_url, user=USER, password=SECRET) as client,
            client.producer() as producer,
        ):
            producer.send_many(Message(TOPIC, b"%d" % n) for n in range(COUNT)).check()
        yield made


@pytest.fixture
def environment(node: EmbeddedNode) -> dict[str, str]:
    return {
        **os.environ,
        "COHERER_URL": node.rocketmq_url,
        "COHERER_USER": USER,
        "COHERER_PASSWORD": SECRET,
        "JAVA_HOME": str(use_java()),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def run(command: list[str], environment: dict[str, str]) -> dict[str, object]:
    """The JSON that a job prints; checks that it succeeds."""
    done = subprocess.run(
        [*command, "--json"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def numbers(folder: Path) -> list[int]:
    values = arrow.dataset(folder, format="parquet").to_table(columns=["value"])["value"]
    return sorted(int(value) for value in values.to_pylist())


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    """The address of a Spark Connect server, which writes below `tmp_path / "spark"`."""
    with (tmp_path / "errors").open("wb") as errors:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.connect_server", str(tmp_path / "spark")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
        )
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        assert port.isdecimal(), (tmp_path / "errors").read_text()
        yield f"sc://localhost:{port}"
    finally:
        try:
            server.communicate(timeout=TIMEOUT_S)
        finally:
            server.kill()


def test_jobs_run_on_a_server_and_it_writes_no_password(
    environment: dict[str, str], node: EmbeddedNode, remote: str, tmp_path: Path
) -> None:
    def job(*words: object) -> list[str]:
        command = [sys.executable, "-m", "coherer", *map(str, words)]
        return [*command, "--spark-remote", remote]

    (tmp_path / "all" / "_temporary" / "0").mkdir(parents=True)  # of a run that was killed
    target = (tmp_path / "all").as_uri()  # this machine does not look at a URI
    assert run(job("export", TOPIC, "--to", target), environment)["rows"] == COUNT
    assert numbers(tmp_path / "all") == list(range(COUNT))
    report = run(job("audit", TOPIC, "--landed", tmp_path / "all"), environment)
    assert report["whole"]
    assert run(job("replay", TOPIC, "--to", AGAIN), environment)["rows"] == COUNT
    again = scan(node.rocketmq_url, AGAIN, columns=["value"], user=USER, password=SECRET)
    assert sorted(int(row["value"]) for row in again.read_all().to_pylist()) == list(range(COUNT))
    written = [path for path in (tmp_path / "spark").rglob("*") if path.is_file()]
    events = [path for path in written if "events" in path.parts and path.stat().st_size]
    assert any(b"redacted" in path.read_bytes() for path in events)
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.skipif(sys.platform == "win32", reason="has no pseudoterminals")
def test_a_terminal_shows_the_progress(
    environment: dict[str, str], remote: str, tmp_path: Path
) -> None:
    """Here and on a server."""
    environment["NO_COLOR"] = "1"
    for place in ([], ["--spark-remote", remote]):
        ours, theirs = os.openpty()
        target = tmp_path / f"table{len(place)}"
        command = [sys.executable, "-m", "coherer", "export", TOPIC, "--to", str(target), *place]
        with os.fdopen(ours, "rb", buffering=0) as shown:
            job = subprocess.Popen(
                command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=theirs
            )
            os.close(theirs)
            text = b""
            try:
                while piece := shown.read(4096):
                    text += piece
            except OSError:  # Linux says so when the other side is closed
                pass
            output, _ = job.communicate(timeout=TIMEOUT_S)
        assert job.returncode == 0, text.decode()
        assert f"{COUNT} messages to {target}" in output.decode()
        assert f"{TOPIC} to /" in text.decode()
        assert re.search(r"\d+/(\d+|\?) tasks", text.decode())


def test_spark_submit_runs_the_program_on_the_page(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "job.py").write_text(program, "utf-8")
    target = tmp_path / "all"
    submit = ["spark-submit", "--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    submit += [str(tmp_path / "job.py"), "export", TOPIC, "--to", str(target)]
    assert run(submit, environment)["rows"] == COUNT
    assert numbers(target) == list(range(COUNT))
