"""Operation of a broker: topics, groups, offsets, statistics, settings (2.7, 2.11, 2.12).

`admin_handlers` is the table of its codes.
"""

from __future__ import annotations

from coherer.server.rocketmq.broker.admin.figures import FigureDesk
from coherer.server.rocketmq.broker.admin.groups import GroupDesk
from coherer.server.rocketmq.broker.admin.progress import ProgressDesk
from coherer.server.rocketmq.broker.admin.settings import SettingsDesk
from coherer.server.rocketmq.broker.admin.topics import TopicDesk
from coherer.server.rocketmq.broker.delays import DelayService
from coherer.server.rocketmq.broker.state import RocketState
from coherer.server.rocketmq.remoting import Handler


def admin_handlers(state: RocketState, delays: DelayService) -> dict[int, Handler]:
    """What operators ask a broker, by request code.

    Args:
        state: what the broker's parts share.
        delays: knows how far delayed messages are.
    """
    found: dict[int, Handler] = {}
    for desk in (TopicDesk(state), GroupDesk(state), ProgressDesk(state), SettingsDesk(state)):
        found.update(desk.handlers())
    found.update(FigureDesk(state, delays).handlers())
    return found
