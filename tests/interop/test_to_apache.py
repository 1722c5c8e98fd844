"""docs/how-to/to-apache.md: from a node to Java's broker on the same directory, step by step."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from coherer.cli.serve.running import Ready
from tests.docs.test_snippets import blocks
from tests.interop.peers.process import free_ports
from tests.interop.peers.rocket_site import RocketSite
from tests.interop.peers.rocketmq import JavaNameServer, JavaRocketBroker

pytestmark = [pytest.mark.interop]

PAGE = "how-to/to-apache.md"
FREE = (
    *("--master-port", "0", "--broker-port", "0", "--admin-port", "0", "--rocketmq-port", "0"),
    *("--default-partitions", "4"),
)


def program(number: int, url: str) -> str:
    """Run one of the page's programs; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", blocks(PAGE)[number]],
        env={**os.environ, "COHERER_URL": url},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def billed(url: str) -> int:
    found = re.fullmatch(r"billed (\d+)\n", program(1, url))
    assert found is not None
    return int(found[1])


def test_the_walk_through(rocket: RocketSite, tmp_path: Path) -> None:
    serve, check = (block.strip() for block in blocks(PAGE, "bash"))
    (port,) = free_ports(1)
    words = serve.split()[1:]
    node = subprocess.Popen(
        [sys.executable, "-m", "coherer", *words, *FREE, "--namesrv-port", str(port), "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )
    try:
        assert node.stdout is not None
        ready = msgspec.json.decode(node.stdout.readline(), type=Ready)
        assert ready.rocketmq_url is not None
        assert program(0, ready.rocketmq_url) == "sold 100\n"
        before = billed(ready.rocketmq_url)
        assert 50 <= before < 100
    finally:
        node.send_signal(signal.SIGTERM)
        node.communicate(timeout=60)
    assert node.returncode == 0

    verify, copy = check.splitlines()
    subprocess.run(
        [sys.executable, "-m", *verify.split()], cwd=tmp_path, check=True, capture_output=True
    )
    if shutil.which("cp") and sys.platform == "linux":
        subprocess.run(copy.split(), cwd=tmp_path, check=True)
        assert (tmp_path / "data.before" / "commitlog").is_dir()

    (conf,) = blocks(PAGE, "properties")
    given = dict(line.split("=", 1) for line in conf.splitlines())
    names = JavaNameServer(rocket.java, tmp_path / "names")
    broker: JavaRocketBroker | None = None
    try:
        names.wait()
        for name in ("storePathRootDir", "storePathCommitLog"):
            given[name] = str(tmp_path / given[name])
        given["namesrvAddr"] = names.address
        broker = JavaRocketBroker(
            rocket.java,
            tmp_path / "broker",
            names.address,
            name=given["brokerName"],
            settings=given,
        )
        broker.start()
        broker.wait()
        url = f"rocketmq://{names.address}"
        rest = billed(url)
        assert before + rest == 100, "each order is billed once, by either broker"
        assert program(0, url) == "sold 100\n"
        assert billed(url) >= 50
    finally:
        if broker is not None:
            broker.stop()
        names.stop()
