"""Operation of a broker: topics, groups, offsets, figures, settings, accounts (2.7, 2.11 - 2.16).

`admin_handlers` is the table of its codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coherer._server.rocketmq.broker.admin.settings import AclAdmin, ConfigAdmin
from coherer._server.rocketmq.broker.admin.stats import ProgressAdmin, StatsAdmin
from coherer._server.rocketmq.broker.admin.topics import GroupAdmin, TopicAdmin
from coherer._server.rocketmq.broker.delays import DelayService
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.remoting import Handler

if TYPE_CHECKING:
    from coherer._server.rocketmq.acl import Access


def admin_handlers(
    state: RocketState, delays: DelayService, access: Access | None = None
) -> dict[int, Handler]:
    """What operators ask a broker, by request code.

    Args:
        state: what the broker's parts share.
        delays: knows how far delayed messages are.
        access: the accounts; None without access control.
    """
    found: dict[int, Handler] = {}
    for desk in (TopicAdmin(state), GroupAdmin(state), ProgressAdmin(state), ConfigAdmin(state)):
        found.update(desk.handlers())
    found.update(StatsAdmin(state, delays).handlers())
    found.update(AclAdmin(state, access).handlers())
    return found
