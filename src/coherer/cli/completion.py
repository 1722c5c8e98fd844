"""Completion of the names of topics and groups in a shell.

It asks the cluster of the command line. If the cluster does not answer within `TIMEOUT_S`, it
completes nothing, without an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import typer

from coherer.cli.target import AdminTarget, command_url, rocketmq_command_url

# Commands import this module, and only a completion asks a cluster.
if TYPE_CHECKING:
    from coherer._administration.access import Cluster

TIMEOUT_S: Final = 1.5

OPTIONS: Final = ("url", "admin", "token", "user", "password")


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics whose names begin with a text."""
    return _complete(context, incomplete, _topics)


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    """Return the groups whose names begin with a text."""
    return _complete(context, incomplete, _groups)


def complete_dead_group(context: typer.Context, incomplete: str) -> list[str]:
    """Return the groups with dead letters whose names begin with a text."""
    return _complete(context, incomplete, _dead_groups)


async def _topics(cluster: Cluster) -> list[str]:
    return await cluster.admin.topics.names()


async def _groups(cluster: Cluster) -> list[str]:
    return await cluster.admin.groups.names()


async def _dead_groups(cluster: Cluster) -> list[str]:
    from coherer._administration.dead_letters import groups

    return await groups(cluster)


def _complete(
    context: typer.Context, incomplete: str, names: Callable[[Cluster], Awaitable[list[str]]]
) -> list[str]:
    given: dict[str, Any] = {name: context.params.get(name) or None for name in OPTIONS}

    async def work(cluster: Cluster) -> list[str]:
        async with asyncio.timeout(TIMEOUT_S):
            return await names(cluster)

    logging.disable(logging.CRITICAL)  # a shell shows all output of a completion
    try:
        url = (rocketmq_command_url if names is _dead_groups else command_url)(given["url"])
        found = AdminTarget(**{**given, "url": url}).run_on_cluster(work)
    except Exception:  # noqa: BLE001 - a completion must not print errors
        return []
    finally:
        logging.disable(logging.NOTSET)
    return [name for name in found if name.startswith(incomplete)]
