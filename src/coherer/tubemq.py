"""The asyncio client of Apache InLong TubeMQ.

```python
import coherer.tubemq

async with coherer.tubemq.connect("tubemq://127.0.0.1:8715") as client:
    async with client.producer("greetings") as producer:
        receipt = await producer.send(coherer.tubemq.Message("greetings", b"hello", tag="en"))
    async with client.consumer("readers", "greetings", start="earliest") as consumer:
        async for message in consumer:
            print(message.body)
```

`coherer.blocking.tubemq` has the same names for programs without asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from coherer._client.connecting import CommonKeywords, client_options
from coherer._client.engine.assigned import RetryAfter
from coherer._client.engine.consumer import Progress
from coherer._client.engine.metrics import ClientMetrics
from coherer._client.engine.sender import Outcome, SendReport
from coherer._client.tubemq.administration.admin import Admin
from coherer._client.tubemq.administration.brokers import BrokerAdmin
from coherer._client.tubemq.administration.groups import GroupAdmin
from coherer._client.tubemq.administration.topics import TopicAdmin
from coherer._client.tubemq.client import Client, ConsumerKeywords
from coherer._client.tubemq.cluster import ClientOptions
from coherer._client.tubemq.consumer import Consumer
from coherer._client.tubemq.fetching import ReceivedBatch
from coherer._client.tubemq.options import Bound, ConsumerOptions, Listener, Start, Topics
from coherer._client.tubemq.producer import Producer
from coherer._client.tubemq.quality import QualityRules
from coherer._client.tubemq.reader import Reader
from coherer._common.node_status import (
    DiskStatus,
    GroupLag,
    LimitStatus,
    ListenerStatus,
    NodeStatus,
    Rate,
    SilentMember,
    StatusWarning,
)
from coherer._common.renamed import renamed
from coherer._net import TlsOptions
from coherer._record.bad_record import BadRecord
from coherer._wire.tubemq.codes import (
    BadRequestError,
    CertificateError,
    ConsumeTypeError,
    ContentForbiddenError,
    DuplicateIndexError,
    DuplicatePartitionError,
    FilterSetError,
    ForbiddenError,
    GroupForbiddenError,
    InternalServerError,
    MovedError,
    NotFoundError,
    NotReadyError,
    NotRegisteredError,
    PartitionOccupiedError,
    SelectBigError,
    ServerOverflowError,
    ServiceUnavailableError,
    SessionKeyError,
    SourceCountError,
    SpeedLimitError,
    TopicNotDeployedError,
    TopicSetError,
    UnauthorizedError,
)
from coherer._wire.tubemq.delivery import MessageBatch
from coherer._wire.tubemq.names import BrokerInfo, Partition
from coherer.message import Message, Receipt, ReceivedMessage

__all__ = [
    "Admin",
    "BadRecord",
    "BadRequestError",
    "Bound",
    "BrokerAdmin",
    "BrokerInfo",
    "CertificateError",
    "Client",
    "ClientMetrics",
    "ClientOptions",
    "ConnectKeywords",
    "ConsumeTypeError",
    "Consumer",
    "ConsumerKeywords",
    "ConsumerOptions",
    "ContentForbiddenError",
    "DiskStatus",
    "DuplicateIndexError",
    "DuplicatePartitionError",
    "FilterSetError",
    "ForbiddenError",
    "GroupAdmin",
    "GroupForbiddenError",
    "GroupLag",
    "InternalServerError",
    "LimitStatus",
    "Listener",
    "ListenerStatus",
    "Message",
    "MessageBatch",
    "MovedError",
    "NodeStatus",
    "NotFoundError",
    "NotReadyError",
    "NotRegisteredError",
    "Outcome",
    "Partition",
    "PartitionOccupiedError",
    "Producer",
    "Progress",
    "QualityRules",
    "Rate",
    "Reader",
    "Receipt",
    "ReceivedBatch",
    "ReceivedMessage",
    "RetryAfter",
    "SelectBigError",
    "SendReport",
    "ServerOverflowError",
    "ServiceUnavailableError",
    "SessionKeyError",
    "SilentMember",
    "SourceCountError",
    "SpeedLimitError",
    "Start",
    "StatusWarning",
    "TlsOptions",
    "TopicAdmin",
    "TopicNotDeployedError",
    "TopicSetError",
    "Topics",
    "UnauthorizedError",
    "connect",
]


class ConnectKeywords(CommonKeywords, total=False):
    """The keywords of `connect`; see `ClientOptions`."""

    admin: str | None
    idle_ms: int
    on_disk: bool


def connect(url: str | None = None, **options: Unpack[ConnectKeywords]) -> Client:
    """Make a client of a TubeMQ cluster. It connects when it is first used.

    Args:
        url: the masters, `tubemq://host:port,host:port`; `tubemqs://` for TLS. None takes
            `COHERER_URL` from the environment.
        options: see `ClientOptions`; the addresses come from the URL.

    Raises:
        UsageError: the URL is not of TubeMQ, or an option is unknown or out of range.

    >>> connect("tubemq://127.0.0.1:8715", timeout_ms=5_000)
    <Client of tubemq://127.0.0.1:8715>
    """
    return Client(client_options(ClientOptions, "tubemq", url, options))


for _class in (
    Admin,
    BrokerAdmin,
    Client,
    Consumer,
    GroupAdmin,
    Producer,
    Reader,
    ReceivedBatch,
    TopicAdmin,
):
    _class.__module__ = __name__  # errors, `repr` and documentation show the public name


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        return renamed(__name__, name)
