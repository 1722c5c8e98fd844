"""Types of handlers' arguments that FastStream injects, as in `faststream.kafka.annotations`.

```python
from coherer.integrations.faststream.annotations import RocketMQMessage


@broker.subscriber("orders", group_id="shop")
async def handle(order: Order, message: RocketMQMessage) -> None:
    print(message.raw_message.tag)
```
"""

from typing import Annotated, TypeAlias

from faststream import Context
from faststream.annotations import ContextRepo, Logger
from faststream.params import NoCast

from coherer.integrations.faststream import message as messages
from coherer.integrations.faststream import rocketmq, tubemq

__all__ = [
    "ContextRepo",
    "Logger",
    "NoCast",
    "RocketMQBroker",
    "RocketMQMessage",
    "TubeMQBroker",
    "TubeMQMessage",
]

RocketMQMessage: TypeAlias = Annotated[messages.RocketMQMessage, Context("message")]
"""The message that the handler is called with."""

RocketMQBroker: TypeAlias = Annotated[rocketmq.RocketMQBroker, Context("broker")]
"""The broker that received the message."""

TubeMQMessage: TypeAlias = Annotated[messages.TubeMQMessage, Context("message")]
"""The message that the handler is called with."""

TubeMQBroker: TypeAlias = Annotated[tubemq.TubeMQBroker, Context("broker")]
"""The broker that received the message."""
