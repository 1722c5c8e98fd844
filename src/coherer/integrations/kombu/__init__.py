"""RocketMQ for kombu, and so for Celery. Needs the extra `celery`: `pip install coherer[celery]`.

```python
import celery
import coherer.integrations.kombu  # kombu now knows rocketmq://

app = celery.Celery("tasks", broker="rocketmq://127.0.0.1:9876")
```

The import registers the URLs. Where none is possible, `broker_transport` (Celery) or `transport`
(kombu's `Connection`) names the class: `"coherer.integrations.kombu:RocketMQ"`.

The guide is docs/how-to/celery.md.
"""

from __future__ import annotations

from coherer.integrations.kombu.options import TransportOptions
from coherer.integrations.kombu.transport import RocketMQ
from coherer.integrations.kombu.untyped import transports

__all__ = ["RocketMQ", "TransportOptions"]

transports.update(dict.fromkeys(("rocketmq", "rocketmqs"), "coherer.integrations.kombu:RocketMQ"))
