"""RocketMQ and TubeMQ as brokers of FastStream.

```python
from faststream import FastStream

from coherer.integrations.faststream import RocketMQBroker

broker = RocketMQBroker("rocketmq://127.0.0.1:9876")
app = FastStream(broker)


@broker.subscriber("orders", group_id="shop", start="earliest")
@broker.publisher("invoices")
async def invoice(order: Order) -> Invoice: ...
```

`pip install coherer[faststream]`. The names, and most of the parameters, are those of FastStream's
Kafka broker. `docs/how-to/faststream.md` moves an application from there.
"""

from coherer.integrations.faststream.message import RocketMQMessage, TubeMQMessage
from coherer.integrations.faststream.response import (
    RocketMQPublishCommand,
    RocketMQPublishMessage,
    RocketMQResponse,
    TubeMQPublishCommand,
    TubeMQPublishMessage,
    TubeMQResponse,
)
from coherer.integrations.faststream.rocketmq import (
    RocketMQBroker,
    RocketMQPublisher,
    RocketMQRoute,
    RocketMQRouter,
)
from coherer.integrations.faststream.testing import TestRocketMQBroker, TestTubeMQBroker
from coherer.integrations.faststream.tubemq import (
    TubeMQBroker,
    TubeMQPublisher,
    TubeMQRoute,
    TubeMQRouter,
)

__all__ = [
    "RocketMQBroker",
    "RocketMQMessage",
    "RocketMQPublishCommand",
    "RocketMQPublishMessage",
    "RocketMQPublisher",
    "RocketMQResponse",
    "RocketMQRoute",
    "RocketMQRouter",
    "TestRocketMQBroker",
    "TestTubeMQBroker",
    "TubeMQBroker",
    "TubeMQMessage",
    "TubeMQPublishCommand",
    "TubeMQPublishMessage",
    "TubeMQPublisher",
    "TubeMQResponse",
    "TubeMQRoute",
    "TubeMQRouter",
]
