"""Messages update an asset through Airflow's own triggerer, which is killed in between."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.cli.cli_parser import get_parser
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
from airflow.models.asset import AssetEvent
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from sqlalchemy import select

from coherer import Message
from coherer.blocking import connect
from tests.integrations.programs import Program, until

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries that Airflow starts

DAG = """
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetWatcher

def watched(topic):
    trigger = MessageQueueTrigger(scheme="rocketmq", topic=topic, group=f"{topic}-watcher")
    return Asset(topic, watchers=[AssetWatcher(name=topic, trigger=trigger)])

for topic in ("one", "other"):
    with DAG(topic, schedule=[watched(topic)], is_paused_upon_creation=False):
        EmptyOperator(task_id="nothing")
"""


def triggerer(log: Path) -> Program:
    """Airflow's command."""
    return Program("-m", "airflow", "triggerer", "--skip-serve-logs", log=log)


def events(topic: str) -> list[str]:
    """The texts of the messages that updated an asset."""
    with create_session() as session:
        found = session.scalars(select(AssetEvent).where(AssetEvent.asset.has(name=topic))).all()
        return [event.extra["payload"]["body"] for event in found]


def test_no_message_is_lost_when_the_triggerer_is_killed(
    url: str, database: Path, tmp_path: Path
) -> None:
    (database / "watching.py").write_text(DAG)
    [bundle] = DagBundlesManager().get_all_dag_bundles()
    DagBundlesManager().sync_bundles_to_db()
    bag = BundleDagBag(bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
    assert not bag.import_errors
    sync_bag_to_db(bag, bundle.name, None)
    with connect(url) as client, client.producer() as producer:
        producer.send(Message("other", b"0"))
        with triggerer(tmp_path / "log"):
            for number in range(20):
                producer.send(Message("one", str(number).encode()))
            until(lambda: events("one"))
        for number in range(20, 30):
            producer.send(Message("one", str(number).encode()))
        with triggerer(tmp_path / "log"):
            until(lambda: {*events("one")} >= {*map(str, range(30))})
            until(lambda: events("other"))
    scheduler = get_parser().parse_args(["scheduler", "--num-runs", "20", "--skip-serve-logs"])
    scheduler.func(scheduler)
    with create_session() as session:
        runs = session.scalars(select(DagRun).where(DagRun.dag_id.in_(("one", "other")))).all()
        assert {run.dag_id for run in runs} == {"one", "other"}
        assert all(run.consumed_asset_events for run in runs)
        assert {run.state for run in runs} == {"success"}
