"""What `MessageQueueTrigger` of Airflow's common-messaging provider finds."""

from __future__ import annotations

from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider
from airflow.triggers.base import BaseEventTrigger

from coherer.integrations.airflow.triggers import MessageTrigger

__all__ = ["CohererMessageQueueProvider"]


class CohererMessageQueueProvider(BaseMessageQueueProvider):
    """Serves the schemes `rocketmq` and `tubemq`; the arguments are those of `MessageTrigger`."""

    def scheme_matches(self, scheme: str) -> bool:
        """Whether the scheme is one of the two protocols."""
        return scheme in {"rocketmq", "tubemq"}

    def trigger_class(self) -> type[BaseEventTrigger]:
        """The trigger that reads the topic."""
        return MessageTrigger
