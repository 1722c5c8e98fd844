"""The same calls of the HTTP administration to Java's broker and ours: the same fields."""

from __future__ import annotations

import asyncio
import json
import urllib.parse
import urllib.request
from pathlib import Path

from peers.clients import closing
from peers.runs import At, scenario
from peers.site import PAIRS
from test_matrix import drain, numbered

SAME = [pair for pair in PAIRS if pair.name in {"java/java", "ours/ours"}]


def ask(url: str, method: str, params: dict[str, object]) -> str:
    query = urllib.parse.urlencode({"method": method, "confModAuthToken": "interop", **params})
    with urllib.request.urlopen(f"{url}/broker.htm?{query}", timeout=10) as response:
        return response.read().decode()


@scenario(SAME, partitions=2, clients=["ours"])
async def test_broker_calls(at: At) -> None:
    [broker] = at.deployed.brokers
    url = f"http://{broker.host}:{broker.web_port}"
    t, g = at.topic, at.group()
    producer = await at.clients.producer(at.master, [t])
    async with closing(producer):
        for message in numbered(t, range(12)):
            await producer.send(message)
    puller = await at.clients.puller(at.master, g, {t: []})
    out = []
    who = {"modifyUser": "tester"}
    async with closing(puller):
        await drain(puller, 12)
        await asyncio.sleep(6)
        for method, params in [
            ("admin_query_server_version", {}),
            ("admin_get_methods", {}),
            ("admin_query_group_offset", {"topicName": t, "groupName": g, "partitionId": 0}),
            ("admin_query_group_offset", {"topicName": t, "groupName": g, "partitionId": 0, "requireRealOffset": "true"}),
            ("admin_query_group_offset", {"topicName": t, "groupName": "nobody", "partitionId": 0, "requireRealOffset": "true"}),
            ("admin_query_group_offset", {"topicName": "nix", "groupName": g, "partitionId": 0}),
            ("admin_query_group_offset", {"topicName": t}),
            ("admin_snapshot_message", {"topicName": t}),
            ("admin_snapshot_message", {"topicName": t, "partitionId": 0, "msgCount": 4}),
            ("admin_snapshot_message", {"topicName": t, "partitionId": 0, "filterConds": "nix"}),
            ("admin_snapshot_message", {"topicName": "nix"}),
            ("admin_snapshot_message", {}),
            ("admin_snapshot_message", {"topicName": t, "msgCount": 51}),
            ("admin_get_group_detail_info", {"groupName": g}),
            ("admin_query_broker_all_consumer_info", {"groupName": g}),
            ("admin_query_broker_memstore_info", {}),
            ("admin_query_broker_all_store_info", {"topicName": t}),
            ("admin_get_partition_reginfo", {"groupName": g}),
            ("admin_query_consumer_regmap", {"groupName": g}),
            ("admin_query_pubinfo", {"topicName": t}),
            ("admin_get_booked_groupname", {}),
            ("admin_get_booked_groupname", {"divide": "true"}),
            ("admin_query_group", {}),
            ("admin_query_offset", {"groupName": g}),
            ("admin_query_offset", {"groupName": "nobody"}),
            ("admin_clone_offset", {**who, "sourceGroupName": g, "targetGroupName": g + "2"}),
            ("admin_query_offset", {"groupName": g + "2"}),
            ("admin_clone_offset", {**who, "sourceGroupName": "nobody", "targetGroupName": g + "2"}),
            ("admin_manual_set_current_offset", {**who, "topicName": t, "groupName": g + "2", "partitionId": 0, "manualOffset": 0}),
            ("admin_manual_set_current_offset", {**who, "topicName": t, "groupName": g + "2", "partitionId": 0, "manualOffset": 999999999}),
            ("admin_set_offset", {**who, "groupName": g + "3", "manualSet": "true", "offsetJsonInfo": json.dumps({f"{broker.broker_id}:{t}:0": 0})}),
            ("admin_set_offset", {**who, "groupName": g + "3", "manualSet": "false", "topicName": t}),
            ("admin_rmv_offset", {**who, "groupName": g + "2"}),
            ("admin_set_offset_by_time", {**who, "groupName": g, "recordTime": "20200101000000"}),
            ("admin_get_group_history_offset", {"groupName": g, "recordTime": "20200101000000"}),
            ("admin_get_metrics_info", {}),
            ("admin_get_metrics_info", {"needRefresh": "true"}),
            ("admin_get_msgstore_stats", {"topicName": t}),
            ("admin_enable_stats", {"statsType": "all"}),
            ("admin_enable_stats", {"statsType": "nix"}),
            ("admin_disable_stats", {"statsType": "msgStore", "topicName": t}),
            ("admin_disable_all_stats", {}),
            ("admin_backup_group_offsets", {"backupPath": "/tmp/httpadmin/backup"}),
        ]:
            try:
                text = await asyncio.to_thread(ask, url, method, params)
            except Exception as error:
                text = repr(error)
            out.append(f"{method} {params}\n    {text}")
    Path(f"/tmp/httpadmin/broker_{at.deployed.place.code}.txt").write_text("\n".join(out))
