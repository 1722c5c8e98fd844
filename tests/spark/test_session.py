"""Settings of a session, and Spark's discovery of the formats."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from coherer import Message
from coherer.blocking import connect
from coherer.spark import configure, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Builder:
    """Records settings."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}

    def config(self, name: str, value: str) -> Builder:
        self.settings[name] = value
        return self


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    monkeypatch.setattr(session, "use_java", lambda: Path("/jdk"))
    for name in ("PYSPARK_PYTHON", "SPARK_LOCAL_IP", "PYTHONWARNINGS"):
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    return Builder()


def test_settings_for_a_local_session(builder: Builder) -> None:
    with warnings.catch_warnings():
        assert configure(builder) is builder  # type: ignore[arg-type, comparison-overlap]
    assert session.ANYWHERE.items() <= builder.settings.items()
    assert session.LOCAL.items() <= builder.settings.items()
    settings_file = builder.settings["spark.driver.extraJavaOptions"].partition("=file://")[2]
    assert "rootLogger.level = error" in Path(settings_file).read_text()
    assert session.QUIET.items() <= builder.settings.items()
    python = os.environ["PYSPARK_PYTHON"]
    configure(builder)  # type: ignore[arg-type]
    assert os.environ["PYSPARK_PYTHON"] == python
    assert settings_of_python(python, "sys.executable") == sys.executable
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"


def settings_of_python(python: str, expression: str, **environment: str) -> str:
    """What an expression is in another Python."""
    code = f"import os, sys; print({expression})"
    done = subprocess.run(
        [python, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout.strip()


def test_workers_use_the_installed_pyspark_instead_of_its_zip(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    configure(builder)  # type: ignore[arg-type]
    python = os.environ["PYSPARK_PYTHON"]
    spark = Path(pyspark.__file__).parent
    added = [spark / "python" / "lib" / "pyspark.zip", spark / "jars" / "spark-core.jar"]
    path = os.pathsep.join(map(str, [*added, "/my code/*", "/other"]))
    assert settings_of_python(python, "os.environ['PYTHONPATH']", PYTHONPATH=path) == (
        "/my code/*:/other"
    )
    assert settings_of_python(python, "repr(os.environ['PYTHONPATH'])", PYTHONPATH="") == "''"


def test_another_spark_keeps_its_path(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    configure(builder)  # type: ignore[arg-type]
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_a_script_of_another_process_is_not_used(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is removed when that process ends."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/tmp/coherer-python-gone/python")
    configure(builder)  # type: ignore[arg-type]
    assert settings_of_python(os.environ["PYSPARK_PYTHON"], "sys.executable") == sys.executable
    assert "spark.python.daemon.module" in builder.settings


def test_settings_for_a_cluster_leave_addresses_checkpoints_and_logs(builder: Builder) -> None:
    configure(builder, local=False, quiet=False)  # type: ignore[arg-type]
    assert builder.settings == session.ANYWHERE
    assert "SPARK_LOCAL_IP" not in os.environ
    assert "PYTHONWARNINGS" not in os.environ


def test_the_users_python_and_warning_filters_are_kept(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    for _ in range(2):
        with warnings.catch_warnings():
            configure(builder)  # type: ignore[arg-type]
    assert os.environ["PYSPARK_PYTHON"] == "/usr/bin/python3"
    assert "spark.python.daemon.module" not in builder.settings, "it may lack coherer"
    filters = os.environ["PYTHONWARNINGS"].split(",")
    assert filters == ["error", "ignore:PySpark does not yet fully support pandas:FutureWarning"]


def test_spark_finds_the_formats() -> None:
    import pyspark_tubemq

    assert pyspark_tubemq.DefaultSource.name() == "tubemq"


def test_the_shims_import_without_spark() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None; import pyspark_tubemq as shim;"
        "print(hasattr(shim, 'DefaultSource'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "False"


@pytest.mark.spark
@pytest.mark.slow
def test_a_stream_stopped_in_the_middle_prints_no_traceback(
    coherer_url: str, coherer_topic: str, tmp_path: Path
) -> None:
    with connect(coherer_url) as client, client.producer(coherer_topic) as producer:
        producer.send_many(Message(coherer_topic, b"x" * 1_000) for _ in range(200_000)).check()
    job = Path(__file__).with_name("stopping_job.py")
    done = subprocess.run(
        [sys.executable, str(job), coherer_url, coherer_topic, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["stopped"] * 5
    assert "Traceback" not in done.stderr


@pytest.mark.spark
def test_another_thread_can_write_with_a_session(
    spark: SparkSession, coherer_url: str, coherer_topic: str
) -> None:
    """Spark looks for Python formats in the session of the thread (docs/spark.md)."""
    rows = spark.createDataFrame([("a",)], "value string")
    sink = rows.write.format("tubemq").option("url", coherer_url).mode("append")

    def write() -> None:
        spark.createDataFrame([], "value string")
        sink.save(coherer_topic)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write).result()
    assert spark.read.format("tubemq").option("url", coherer_url).load(coherer_topic).count() == 1


@pytest.mark.spark
@pytest.mark.slow
def test_workers_do_not_compile_pyspark(spark: SparkSession) -> None:
    place = spark.sparkContext.parallelize([0], 1).map(lambda _: pyspark.__file__).first()
    assert place == pyspark.__file__
