"""Fixtures: connections to a node, Airflow's database, and names of topics.

Airflow reads its settings when it is imported, so they are set here before.
"""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import tempfile
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

from coherer.testing import EmbeddedNode  # noqa: E402 - see above

_numbers = itertools.count()


@pytest.fixture(scope="session")
def node(coherer_node: EmbeddedNode) -> EmbeddedNode:
    """The node that the connections name."""
    return coherer_node


@pytest.fixture(scope="session", autouse=True)
def connections(node: EmbeddedNode) -> None:
    """Connections to the node, over both protocols."""
    os.environ["AIRFLOW_CONN_COHERER_DEFAULT"] = node.rocketmq_url
    os.environ["AIRFLOW_CONN_TUBEMQ_DEFAULT"] = node.url


@pytest.fixture
def topic(node: EmbeddedNode) -> str:
    name = f"topic{next(_numbers)}"
    node.create_topic(name, 2)
    return name


@pytest.fixture(scope="session")
def database() -> Path:
    """Airflow's metadata database; returns the folder of the DAGs."""
    from airflow.utils.db import initdb

    initdb()
    return DAGS
