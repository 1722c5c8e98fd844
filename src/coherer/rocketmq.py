"""The asyncio client of Apache RocketMQ 4.9.

```python
import coherer.rocketmq

async with coherer.rocketmq.connect("rocketmq://127.0.0.1:9876") as client:
    async with client.producer("orders") as producer:
        await producer.send(coherer.rocketmq.Message("orders", b"42", tag="new"), order_by="42")
    async with client.consumer("shop", {"orders": "new || paid"}, start="earliest") as consumer:
        async for message in consumer:
            print(message.body)
```

`coherer.blocking.rocketmq` has the same names for programs without asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from coherer._client.connecting import CommonKeywords, client_options
from coherer._client.engine.assigned import RetryAfter
from coherer._client.engine.consumer import Progress
from coherer._client.engine.metrics import ClientMetrics
from coherer._client.engine.sender import Outcome, SendReport
from coherer._client.rocketmq.administration.accounts import AccountAdmin
from coherer._client.rocketmq.administration.admin import Admin
from coherer._client.rocketmq.administration.brokers import BrokerAdmin
from coherer._client.rocketmq.administration.groups import GroupAdmin
from coherer._client.rocketmq.administration.messages import MessageAdmin
from coherer._client.rocketmq.administration.name_servers import NameServerAdmin
from coherer._client.rocketmq.administration.records import (
    ConsumeRates,
    Counter,
    DirectResult,
    HeldQueue,
    QueueLock,
    Rate,
    RunningConsumer,
    TimeSpan,
)
from coherer._client.rocketmq.administration.topics import TopicAdmin
from coherer._client.rocketmq.client import Client, ConsumerKeywords, ProducerKeywords
from coherer._client.rocketmq.consuming.consumer import Consumer, PullConsumer
from coherer._client.rocketmq.consuming.reader import Reader
from coherer._client.rocketmq.faults import FaultRules
from coherer._client.rocketmq.observers import Kind, Observer, SendObserver, StoredSend
from coherer._client.rocketmq.options import (
    ClientOptions,
    ConsumerOptions,
    Listener,
    Model,
    ProducerOptions,
    Selection,
    Topics,
)
from coherer._client.rocketmq.producing.half_messages import HalfMessages, TwoPhaseCommit
from coherer._client.rocketmq.producing.producer import Producer
from coherer._client.rocketmq.producing.queue_selection import Key
from coherer._client.rocketmq.received import ReceivedBatch, ReceivedMessage
from coherer._client.rocketmq.start_position import Edge, Start
from coherer._client.rocketmq.telemetry import Telemetry
from coherer._client.rocketmq.transactions import Check, Transaction, Verdict
from coherer._common.renamed import renamed
from coherer._net import TlsOptions
from coherer._record.bad_record import BadRecord
from coherer._wire.rocketmq.allocate import (
    Strategy,
    average,
    by_circle,
    consistent_hash,
    fixed,
    machine_room,
    nearby,
)
from coherer._wire.rocketmq.bodies import Offsets
from coherer._wire.rocketmq.codes import (
    AclDeleteError,
    AclUpdateError,
    AclWhiteListError,
    ConsumerNotOnlineError,
    ConsumeTimeoutError,
    FilterDataNotExistError,
    FilterDataNotLatestError,
    FlushDiskTimeoutError,
    FlushSlaveTimeoutError,
    GroupNotExistError,
    MessageIllegalError,
    NoPermissionError,
    NotSupportedError,
    PullNotFoundError,
    PullOffsetMovedError,
    PullRetryError,
    QueryNotFoundError,
    ServiceNotAvailableError,
    SlaveNotAvailableError,
    SubscriptionNotExistError,
    SubscriptionNotLatestError,
    SubscriptionParseError,
    SystemBusyError,
    SystemFailureError,
    TopicNotExistError,
)
from coherer._wire.rocketmq.delivery import MessageBatch
from coherer._wire.rocketmq.messages import SendReceipt, StoredMessage
from coherer._wire.rocketmq.names import Queue
from coherer._wire.rocketmq.subscription import Sql92, Tags
from coherer.message import Message

__all__ = [
    "AccountAdmin",
    "AclDeleteError",
    "AclUpdateError",
    "AclWhiteListError",
    "Admin",
    "BadRecord",
    "BrokerAdmin",
    "Check",
    "Client",
    "ClientMetrics",
    "ClientOptions",
    "ConnectKeywords",
    "ConsumeRates",
    "ConsumeTimeoutError",
    "Consumer",
    "ConsumerKeywords",
    "ConsumerNotOnlineError",
    "ConsumerOptions",
    "Counter",
    "DirectResult",
    "Edge",
    "FaultRules",
    "FilterDataNotExistError",
    "FilterDataNotLatestError",
    "FlushDiskTimeoutError",
    "FlushSlaveTimeoutError",
    "GroupAdmin",
    "GroupNotExistError",
    "HalfMessages",
    "HeldQueue",
    "Key",
    "Kind",
    "Listener",
    "Message",
    "MessageAdmin",
    "MessageBatch",
    "MessageIllegalError",
    "Model",
    "NameServerAdmin",
    "NoPermissionError",
    "NotSupportedError",
    "Observer",
    "Offsets",
    "Outcome",
    "Producer",
    "ProducerKeywords",
    "ProducerOptions",
    "Progress",
    "PullConsumer",
    "PullNotFoundError",
    "PullOffsetMovedError",
    "PullRetryError",
    "QueryNotFoundError",
    "Queue",
    "QueueLock",
    "Rate",
    "Reader",
    "ReceivedBatch",
    "ReceivedMessage",
    "RetryAfter",
    "RunningConsumer",
    "Selection",
    "SendObserver",
    "SendReceipt",
    "SendReport",
    "ServiceNotAvailableError",
    "SlaveNotAvailableError",
    "Sql92",
    "Start",
    "StoredMessage",
    "StoredSend",
    "Strategy",
    "SubscriptionNotExistError",
    "SubscriptionNotLatestError",
    "SubscriptionParseError",
    "SystemBusyError",
    "SystemFailureError",
    "Tags",
    "Telemetry",
    "TimeSpan",
    "TlsOptions",
    "TopicAdmin",
    "TopicNotExistError",
    "Topics",
    "Transaction",
    "TwoPhaseCommit",
    "Verdict",
    "average",
    "by_circle",
    "connect",
    "consistent_hash",
    "fixed",
    "machine_room",
    "nearby",
]


class ConnectKeywords(CommonKeywords, total=False):
    """The keywords of `connect`; see `ClientOptions`."""

    token: str | None
    route_ms: int
    namespace: str
    instance: str | None
    unit: str
    vip: bool


def connect(url: str | None = None, **options: Unpack[ConnectKeywords]) -> Client:
    """Make a client of a RocketMQ cluster. It connects when it is first used.

    Args:
        url: the name servers, `rocketmq://host:port;host:port`; `rocketmqs://` for TLS. None takes
            `COHERER_URL` from the environment, or else the name servers in `NAMESRV_ADDR`.
        options: see `ClientOptions`; the addresses come from the URL.

    Raises:
        UsageError: the URL is not of RocketMQ, or an option is unknown or out of range.

    >>> connect("rocketmq://127.0.0.1:9876", namespace="team")
    <Client of rocketmq://127.0.0.1:9876>
    """
    return Client(client_options(ClientOptions, "rocketmq", url, options))


for _class in (
    AccountAdmin,
    Admin,
    BrokerAdmin,
    Client,
    Consumer,
    GroupAdmin,
    MessageAdmin,
    NameServerAdmin,
    Producer,
    PullConsumer,
    Reader,
    ReceivedBatch,
    ReceivedMessage,
    TopicAdmin,
    Transaction,
):
    _class.__module__ = __name__  # errors, `repr` and documentation show the public name


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        return renamed(__name__, name)
