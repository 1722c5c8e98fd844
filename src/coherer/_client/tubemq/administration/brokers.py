"""Administration of brokers, which the master knows."""

from __future__ import annotations

import asyncio
import builtins

from coherer import admin
from coherer._client.engine.administration import Part
from coherer._client.engine.arguments import checked
from coherer._client.tubemq.administration import records
from coherer._client.tubemq.administration.calls import AdminCalls


@checked
class BrokerAdmin(Part):
    """The brokers of a cluster: `admin.brokers`."""

    _INSTEAD = "brokers.list"

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._calls.server!r})"

    async def list(self) -> builtins.list[admin.Broker]:
        """The brokers that the master knows, sorted by id."""
        configured, running = await asyncio.gather(
            self._calls.brokers(),
            self._calls.ask(records.BrokerRun, "admin_query_broker_run_status", {}),
        )
        runs = {run.broker_id: run for run in running.data}
        return [record.broker(runs.get(record.broker_id)) for record in configured]
