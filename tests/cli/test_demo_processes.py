"""The demo's Java ends with the demo, at whatever moment that ends."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from subprocess import PIPE

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark import java_gateway

from coherer.cli import java as javas
from coherer.cli.demo import processes

DEAF = [sys.executable, "-c", "import signal; signal.pause()"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("cleaned", [True, False])
def test_ctrl_c_kills_java_while_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, cleaned: bool
) -> None:
    def starting(_directory: Path, _cores: int, *_: object, **__: object) -> None:
        try:
            with java_gateway.Popen(DEAF, stdin=PIPE):
                signal.raise_signal(number)
        except KeyboardInterrupt:
            # pyspark stops its context on the way out, which calls a Java that is gone.
            if cleaned:
                raise
            raise Py4JNetworkError("Answer from Java side is empty") from None

    monkeypatch.setattr(processes, "session", starting)
    popen, handlers = java_gateway.Popen, [signal.getsignal(n) for n in (2, 15)]
    with pytest.raises(KeyboardInterrupt), processes.spark_session(tmp_path, 2):
        raise AssertionError
    java = javas.JavaProcess.started
    assert java is not None
    assert java.returncode == -signal.SIGKILL
    assert java_gateway.Popen is popen
    assert [signal.getsignal(n) for n in (2, 15)] == handlers
