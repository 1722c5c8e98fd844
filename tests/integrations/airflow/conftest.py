"""Fixtures: connections, Airflow's database, and names of topics.

Airflow reads its settings when it is imported, so they are set here before.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import uuid
from pathlib import Path

HOME = Path(tempfile.mkdtemp(prefix="coherer-airflow-"))
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
DAGS = HOME / "dags"
DAGS.mkdir()
os.environ |= {
    "AIRFLOW_HOME": str(HOME),
    "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
    "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.1",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "3",
}

import pytest  # noqa: E402 - see above

from coherer.blocking import connect  # noqa: E402 - see above
from coherer.testing import EmbeddedNode  # noqa: E402 - see above


@pytest.fixture(scope="session", autouse=True)
def connections(coherer_node: EmbeddedNode, coherer_rocketmq_url: str) -> None:
    """Connections to the clusters, over both protocols."""
    os.environ["AIRFLOW_CONN_COHERER_DEFAULT"] = coherer_rocketmq_url
    os.environ["AIRFLOW_CONN_TUBEMQ_DEFAULT"] = coherer_node.url


@pytest.fixture
def topic(coherer_rocketmq_url: str) -> str:
    name = f"topic-{uuid.uuid4()}"
    with connect(coherer_rocketmq_url) as client:
        client.admin().topics.create(name, 2, wait_ms=60_000)
    return name


@pytest.fixture(scope="session")
def database() -> Path:
    """Airflow's metadata database; returns the folder of the DAGs."""
    from airflow.utils.db import initdb

    initdb()
    return DAGS
