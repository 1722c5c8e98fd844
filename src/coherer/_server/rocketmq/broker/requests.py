"""The tables of a RocketMQ broker: the handler of each request code.

The codes are described in docs/protocol/rocketmq.md, section 2. Sends (`SEND_MESSAGE`,
`SEND_MESSAGE_V2`, `SEND_BATCH_MESSAGE`) are missing here: `RemotingServer` hands all sends of one
socket read to `SendHandler.batch`. The name server has its own table, in `namesrv.nameserver`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from coherer._server.rocketmq.acl import Access
from coherer._server.rocketmq.broker.admin_settings import AclAdmin, ConfigAdmin
from coherer._server.rocketmq.broker.admin_stats import ProgressAdmin, StatsAdmin
from coherer._server.rocketmq.broker.admin_topics import GroupAdmin, TopicAdmin
from coherer._server.rocketmq.broker.client_calls import ClientCalls
from coherer._server.rocketmq.broker.clients import ClientHandler
from coherer._server.rocketmq.broker.delays import DelayService
from coherer._server.rocketmq.broker.pulling import PullHandler
from coherer._server.rocketmq.broker.queries import MessageQueryHandler, OffsetHandler
from coherer._server.rocketmq.broker.reply_messages import ReplyHandler
from coherer._server.rocketmq.broker.send_back import SendBackHandler
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.broker.transactions import TransactionService
from coherer._server.rocketmq.remoting import Answer, Handler, without_channel
from coherer._wire.rocketmq.codes import RequestCode as Code
from coherer._wire.rocketmq.command import Command


def message_requests(
    pulls: PullHandler,
    send_back: SendBackHandler,
    queries: MessageQueryHandler,
    offsets: OffsetHandler,
    delays: DelayService,
    transactions: TransactionService,
) -> dict[int, Handler]:
    """Requests about messages, offsets and transactions."""
    return {
        Code.PULL_MESSAGE: pulls.pull,
        Code.LITE_PULL_MESSAGE: pulls.pull,
        Code.CONSUMER_SEND_MSG_BACK: send_back.send_back,
        Code.QUERY_MESSAGE: queries.by_key,
        Code.VIEW_MESSAGE_BY_ID: queries.by_offset,
        Code.QUERY_CONSUMER_OFFSET: offsets.query,
        Code.UPDATE_CONSUMER_OFFSET: offsets.update,
        Code.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search,
        Code.GET_MAX_OFFSET: offsets.maximum,
        Code.GET_MIN_OFFSET: offsets.minimum,
        Code.GET_EARLIEST_MSG_STORETIME: offsets.earliest,
        Code.GET_ALL_CONSUMER_OFFSET: offsets.all_groups,
        Code.GET_ALL_DELAY_OFFSET: delays.all_offsets,
        Code.END_TRANSACTION: transactions.end,
        Code.END_HALF_BATCH: transactions.end,
        Code.RESUME_CHECK_HALF_MESSAGE: transactions.resume,
    }


def client_requests(
    clients: ClientHandler, calls: ClientCalls, replies: ReplyHandler
) -> dict[int, Handler]:
    """Requests about connected clients, and requests that the broker relays to them."""
    return {
        Code.HEART_BEAT: clients.heartbeat,
        Code.UNREGISTER_CLIENT: clients.unregister,
        Code.GET_CONSUMER_LIST_BY_GROUP: clients.consumer_ids,
        Code.CHECK_CLIENT_CONFIG: clients.check_client,
        Code.LOCK_BATCH_MQ: clients.lock,
        Code.UNLOCK_BATCH_MQ: clients.unlock,
        Code.GET_CONSUMER_CONNECTION_LIST: clients.consumer_connections,
        Code.GET_PRODUCER_CONNECTION_LIST: clients.producer_connections,
        Code.GET_ALL_PRODUCER_INFO: clients.all_producers,
        Code.QUERY_TOPIC_CONSUME_BY_WHO: clients.groups_of_topic,
        Code.INVOKE_BROKER_TO_RESET_OFFSET: calls.reset_offset,
        Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: calls.consumer_status,
        Code.GET_CONSUMER_RUNNING_INFO: calls.running_info,
        Code.CONSUME_MESSAGE_DIRECTLY: calls.consume_directly,
        Code.SEND_REPLY_MESSAGE: replies.reply,
        Code.SEND_REPLY_MESSAGE_V2: replies.reply,
    }


def admin_requests(
    state: RocketState, delays: DelayService, access: Access | None = None
) -> dict[int, Handler]:
    """Requests of operators: topics, groups, statistics, settings and accounts.

    Args:
        delays: for the offsets of delayed messages.
        access: the accounts; None without access control.
    """
    topics, groups = TopicAdmin(state), GroupAdmin(state)
    progress, stats = ProgressAdmin(state), StatsAdmin(state, delays)
    config, acl = ConfigAdmin(state), AclAdmin(state, access)
    table: dict[Code, Callable[[Command], Answer | Awaitable[Answer]]] = {
        Code.UPDATE_AND_CREATE_TOPIC: topics.put,
        Code.GET_ALL_TOPIC_CONFIG: topics.get_all,
        Code.DELETE_TOPIC_IN_BROKER: topics.delete,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics.system_topics,
        Code.CLEAN_EXPIRED_CONSUMEQUEUE: topics.clean_expired,
        Code.CLEAN_UNUSED_TOPIC: topics.clean_unused,
        Code.GET_TOPIC_CONFIG: topics.get,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.put,
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.get_all,
        Code.DELETE_SUBSCRIPTIONGROUP: groups.delete,
        Code.QUERY_CORRECTION_OFFSET: groups.correction_offsets,
        Code.GET_TOPIC_STATS_INFO: progress.topic,
        Code.GET_CONSUME_STATS: progress.group,
        Code.QUERY_CONSUME_TIME_SPAN: progress.time_span,
        Code.GET_BROKER_CONSUME_STATS: progress.all_groups,
        Code.GET_BROKER_RUNTIME_INFO: stats.runtime_info,
        Code.VIEW_BROKER_STATS_DATA: stats.counter,
        Code.QUERY_CONSUME_QUEUE: stats.queue_entries,
        Code.UPDATE_BROKER_CONFIG: config.update,
        Code.GET_BROKER_CONFIG: config.get,
        Code.UPDATE_AND_CREATE_ACL_CONFIG: acl.put,
        Code.DELETE_ACL_CONFIG: acl.delete,
        Code.GET_BROKER_CLUSTER_ACL_INFO: acl.versions,
        Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: acl.set_trusted_addresses,
        Code.GET_BROKER_CLUSTER_ACL_CONFIG: acl.get_all,
    }
    return {
        **{int(code): without_channel(handler) for code, handler in table.items()},
        Code.CLONE_GROUP_OFFSET: groups.clone_offsets,
    }
