"""Airflow 3 on RocketMQ, TubeMQ, or a Coherer node.

| module | what is in it |
|---|---|
| `hooks` | `CohererHook`: clients of the cluster that a connection names |
| `operators` | `ProduceOperator` sends messages, `ConsumeOperator` hands them to a function |
| `sensors` | `MessageSensor` waits for a message |
| `triggers` | `MessageTrigger` for watchers of assets, `AwaitMessageTrigger` for deferred tasks |
| `queues` | what `MessageQueueTrigger(scheme="rocketmq")` finds |

Airflow finds the plug through the entry point `apache_airflow_provider`, which names
`get_provider_info`. This module imports nothing, so that the entry point costs nothing.
"""

from __future__ import annotations

from typing import Any

__all__ = ["get_provider_info"]


def get_provider_info() -> dict[str, Any]:
    """Describe the connection types and the queue provider to Airflow."""
    behaviour: dict[str, Any] = {
        "hidden-fields": ["schema"],
        "relabeling": {"host": "Name servers or masters", "extra": "Options of the client"},
        "placeholders": {"extra": '{"tls": true, "timeout_ms": 10000}'},
    }
    return {
        "package-name": "coherer",
        "name": "Coherer",
        "description": "RocketMQ and TubeMQ: hook, operators, sensor, triggers.",
        "connection-types": [
            {
                "connection-type": kind,
                "hook-class-name": f"{__name__}.hooks.{name}Hook",
                "hook-name": name,
                "ui-field-behaviour": behaviour,
            }
            for kind, name in (("rocketmq", "RocketMQ"), ("tubemq", "TubeMQ"))
        ],
        "queues": [f"{__name__}.queues.CohererMessageQueueProvider"],
    }
