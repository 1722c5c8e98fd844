"""Custom headers: the fields of a command, with types (protocol page, 1.5 and 2 to 4).

`Command.fields` is text; `parse` makes one of the classes here of it and `Header.fields` goes back.

Java fills what it can and goes on with null for a field that is missing or no number; what becomes
of the request then depends on who touches the null. So here:

* a field with a default is one that Java can do without;
* a field without is one that Java trips over: `parse` refuses with the code and kind of remark that
  Java's answer has.
"""

from __future__ import annotations

from coherer._wire.rocketmq.headers.admin import (
    AccessKeyHeader,
    AccountHeader,
    AclVersionResult,
    BrokerConsumeStatsHeader,
    ConsumeStatsHeader,
    ConsumeTimeSpanHeader,
    CreateTopicHeader,
    DeleteGroupHeader,
    QueryConsumeQueueHeader,
    TopicHeader,
    VersionResult,
    ViewStatsHeader,
    WhiteAddressesHeader,
)
from coherer._wire.rocketmq.headers.base import NULL, Header, missing, negative_count, parse
from coherer._wire.rocketmq.headers.clients import (
    CheckTransactionHeader,
    ConsumeDirectlyHeader,
    ConsumerStatusHeader,
    EndTransactionHeader,
    GroupHeader,
    MessageIdHeader,
    ProducerGroupHeader,
    ResetOffsetHeader,
    RunningInfoHeader,
    UnregisterClientHeader,
)
from coherer._wire.rocketmq.headers.namesrv import (
    AddResult,
    BrokerHeader,
    BrokerNameHeader,
    ClusterHeader,
    DataVersionResult,
    KvHeader,
    KvResult,
    NamespaceHeader,
    PutKvHeader,
    RegisterBrokerHeader,
    RegisterBrokerResult,
    WipeResult,
)
from coherer._wire.rocketmq.headers.reading import (
    CloneOffsetHeader,
    CorrectionOffsetHeader,
    OffsetResult,
    PullHeader,
    PullResult,
    QueryMessageHeader,
    QueryMessageResult,
    QueryOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    TimestampResult,
    UpdateOffsetHeader,
    ViewMessageHeader,
)
from coherer._wire.rocketmq.headers.sending import (
    PushReplyHeader,
    SendBackHeader,
    SendHeader,
    SendResult,
    read_send,
)

__all__ = [
    "NULL",
    "AccessKeyHeader",
    "AccountHeader",
    "AclVersionResult",
    "AddResult",
    "BrokerConsumeStatsHeader",
    "BrokerHeader",
    "BrokerNameHeader",
    "CheckTransactionHeader",
    "CloneOffsetHeader",
    "ClusterHeader",
    "ConsumeDirectlyHeader",
    "ConsumeStatsHeader",
    "ConsumeTimeSpanHeader",
    "ConsumerStatusHeader",
    "CorrectionOffsetHeader",
    "CreateTopicHeader",
    "DataVersionResult",
    "DeleteGroupHeader",
    "EndTransactionHeader",
    "GroupHeader",
    "Header",
    "KvHeader",
    "KvResult",
    "MessageIdHeader",
    "NamespaceHeader",
    "OffsetResult",
    "ProducerGroupHeader",
    "PullHeader",
    "PullResult",
    "PushReplyHeader",
    "PutKvHeader",
    "QueryConsumeQueueHeader",
    "QueryMessageHeader",
    "QueryMessageResult",
    "QueryOffsetHeader",
    "QueueHeader",
    "RegisterBrokerHeader",
    "RegisterBrokerResult",
    "ResetOffsetHeader",
    "RunningInfoHeader",
    "SearchOffsetHeader",
    "SendBackHeader",
    "SendHeader",
    "SendResult",
    "TimestampResult",
    "TopicHeader",
    "UnregisterClientHeader",
    "UpdateOffsetHeader",
    "VersionResult",
    "ViewMessageHeader",
    "ViewStatsHeader",
    "WhiteAddressesHeader",
    "WipeResult",
    "missing",
    "negative_count",
    "parse",
    "read_send",
]
