"""Translates a node's options for its parts: store, RocketMQ broker, TubeMQ master."""

from __future__ import annotations

from collections.abc import Mapping

from coherer._record.system_topics import parse_levels
from coherer._server.node.node_options import NodeOptions
from coherer._server.rocketmq.broker.options import MESSAGE_BYTES, RocketOptions
from coherer._server.tubemq.master.options import MasterOptions
from coherer._store import StoreOptions


def store_options(options: NodeOptions) -> StoreOptions:
    """The options of the store."""
    return StoreOptions(
        segment_bytes=options.log_file_bytes(),
        flush=options.flush,
        flush_interval_ms=options.flush_interval_ms,
        retention_hours=options.retention_hours,
        retention_bytes=options.retention_bytes,
        replica=options.is_slave,
        delay_levels_ms=parse_levels(options.delay_levels),
    )


def rocketmq_options(options: NodeOptions, port: int, ha_port: int) -> RocketOptions:
    """The options of the RocketMQ broker.

    Args:
        options: those of the node.
        port: the port on which it listens.
        ha_port: the port for its slaves; 0 without.
    """
    return RocketOptions(
        cluster=options.cluster,
        broker=options.broker_name,
        host=options.reachable_host,
        port=options.advertised_rocketmq_port or port,
        ha_port=ha_port,
        auto_create_topics=options.auto_create_topics,
        default_queues=options.default_partitions,
        message_bytes_max=options.max_message_bytes or MESSAGE_BYTES,
        role=options.role,
        broker_id=options.rocketmq_broker_id,
        trace_topic=options.trace_topic,
        transaction_timeout_ms=options.transaction_timeout_ms,
        transaction_checks_max=options.transaction_checks_max,
        transaction_interval_ms=options.transaction_interval_ms,
    )


def master_options(
    options: NodeOptions, passwords: Mapping[str, str] | None = None, web_port: int = 0
) -> MasterOptions:
    """The options of the TubeMQ master.

    Args:
        options: those of the node.
        passwords: by name, of the accounts with all permissions; None without accounts.
        web_port: the port of its HTTP administration; 0 without.
    """
    authenticate = options.protects("tubemq")
    return MasterOptions(
        host=options.reachable_host,
        port=options.master_port,
        auto_create_topics=options.auto_create_topics,
        default_partitions=options.default_partitions,
        max_message_bytes=options.max_message_bytes,
        producer_timeout_ms=options.client_timeout_ms,
        consumer_timeout_ms=options.client_timeout_ms,
        broker_timeout_ms=options.broker_timeout_ms,
        balance_period_ms=options.balance_period_ms,
        users=passwords if options.has_accounts else None,
        authenticate_producers=authenticate,
        authenticate_consumers=authenticate,
        authenticate_brokers=authenticate or bool(options.broker_user),
        broker_user=options.broker_user,
        broker_password=options.broker_password,
        visit_token_check=options.visit_token_check,
        web_port=web_port,
    )
