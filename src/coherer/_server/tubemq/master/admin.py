"""The master's HTTP administration: all methods, and those for the cluster and its brokers.

It has all methods of Java's master, with the same forms (docs/protocol/tubemq.md, section 10).
Methods that are not supported are refused by name. Times are in the time zone of the machine, as in
Java.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import metadata

import msgspec

from coherer._rules.tubemq.groups import GroupKind
from coherer._rules.tubemq.records import (
    UNDEFINED,
    BrokerRecord,
    CatalogError,
    Change,
    ClusterSetting,
    ManageStatus,
    OpCode,
)
from coherer._rules.tubemq.registry import PAUSED_BY_ERRORS
from coherer._server.http.app import AdminApp, Method
from coherer._server.http.guard import Guard
from coherer._server.http.params import Answer, Json, ParamError, Params, done, found
from coherer._server.tubemq.admin_stats import (
    ALL,
    SERVICE,
    WEB,
    Switches,
    WebCalls,
    metrics_form,
    time_text,
)
from coherer._server.tubemq.histogram import Histogram
from coherer._server.tubemq.master.admin_answers import (
    deployment_form,
    props_form,
    rules_form,
    stamp_form,
)
from coherer._server.tubemq.master.admin_changes import (
    AdminContext,
    Step,
    create_change,
    execute,
    execute_batch,
    unchanged_error,
    update_change,
)
from coherer._server.tubemq.master.admin_groups import GroupAdmin
from coherer._server.tubemq.master.admin_groups_legacy import LegacyGroupAdmin
from coherer._server.tubemq.master.admin_parameters import (
    broker_ids,
    flow_changes,
    has_values,
    megabytes,
    props_changes,
    rule_status,
)
from coherer._server.tubemq.master.admin_topics import TopicAdmin
from coherer._server.tubemq.master.master import Master
from coherer._server.tubemq.master.state import MasterState

_MIB = 1024 * 1024
_NUMBERS = {
    "port": "brokerPort",
    "tls_port": "brokerTLSPort",
    "web_port": "brokerWebPort",
    "region": "regionId",
    "group": "groupId",
}


def master_admin(master: Master, guard: Guard | None = None) -> AdminApp:
    """The HTTP administration of a master.

    Args:
        guard: checks access; if None, changes need the token in the options of the master.

    >>> app = master_admin(Master())
    >>> app.handle("admin_query_broker_configure", {})
    {'result': True, 'errCode': 0, 'errMsg': 'OK', 'data': [], 'count': 0}
    """
    context = AdminContext(master)
    calls = WebCalls(master.state.wall_ms)
    rows: dict[str, Method] = {
        **BrokerAdmin(context).methods(),
        **TopicAdmin(context).methods(),
        **GroupAdmin(context).methods(),
        **LegacyGroupAdmin(context).methods(),
        **ClusterAdmin(context).methods(),
        **MetricsAdmin(context, calls).methods(),
        **Switches(calls, (ALL, SERVICE, WEB)).methods(changes=True),
        "admin_transfer_current_master": Method(_one_master, changes=True),
    }
    rows["admin_get_methods"] = Method(lambda _: found(_method_form(rows, name) for name in rows))
    rows = calls.counted(rows)
    options = master.state.options
    text = f"{options.host}:{options.port} is not master now"
    guard = guard or Guard(options.admin_token)
    return AdminApp(rows, guard, closed=lambda: None if master.active else text)


def _one_master(params: Params) -> Answer:
    del params
    raise ParamError(
        "admin_transfer_current_master is not supported. "
        "Start a standby and stop this master to move its role."
    )


class MetricsAdmin:
    """The figures of a master."""

    def __init__(self, context: AdminContext, calls: WebCalls) -> None:
        self._context = context
        self._calls = calls

    def methods(self) -> dict[str, Method]:
        return {"admin_get_metrics_info": Method(self.metrics)}

    def metrics(self, params: Params) -> Answer:
        """admin_get_metrics_info; `needRefresh` resets the counters."""
        state, refresh = self._context.state, params.flag("needRefresh") or False
        service = self._service()
        if refresh:
            state.counters.clear(state.wall_ms())
        calls = self._calls.form(refresh=refresh)
        return found(metrics_form(state.options.host, "Master", state.wall_ms(), service, calls))

    def _service(self) -> Answer:
        counters = self._context.state.counters
        return {
            "reset_time": time_text(counters.since_ms),
            **online_counts(self._context.state),
            **timeout_counts(self._context.state),
            "server_balance_normal": counters.balances.form(),
            "server_balance_reset": Histogram().form(),
        }


def online_counts(state: MasterState) -> dict[str, int]:
    """The current counts, by the names of Java's metrics."""
    groups, registry = list(state.groups), list(state.broker_registry)
    members = [member for group in groups for member in group.members.values()]
    stopped = [state.broker_registry.stopped(broker.id) for broker in registry]
    abnormal = [b for b in registry if PAUSED_BY_ERRORS in (b.read_status, b.write_status)]
    return {
        "csm_online_group_cnt": len(groups),
        "csm_client_bal_group_cnt": sum(
            group.subscription.kind is GroupKind.CLIENT_BALANCED for group in groups
        ),
        "consumer_online_cnt": len(members),
        "consumer_con_event_cnt": sum(len(member.assignments) for member in members),
        "consumer_discon_event_cnt": sum(len(member.revocations) for member in members),
        "producer_online_cnt": len(state.producers),
        "broker_configured_cnt": len(state.catalog.brokers),
        "broker_online_cnt": sum(broker.online for broker in registry),
        "broker_abnormal_cnt": len(abnormal),
        "broker_forbidden_cnt": sum(any(pair) for pair in stopped),
    }


def timeout_counts(state: MasterState) -> dict[str, int]:
    """The counts of timeouts since the last reset, by the names of Java's metrics."""
    counters = state.counters
    return {
        "csm_group_timeout_cnt": counters.groups_timed_out,
        "client_balance_timeout_cnt": counters.client_balanced_timed_out,
        "consumer_timeout_cnt": counters.consumers_timed_out,
        "producer_timeout_cnt": counters.producers_timed_out,
        "broker_timeout_cnt": counters.brokers_timed_out,
    }


def active_admin_url(master: Master) -> str | None:
    """The URL of the active master's administration, if this master is a standby and knows it."""
    return master.state.options.active_admin_url if master.standby else None


def _method_form(rows: dict[str, Method], name: str) -> Answer:
    return {"method": name, "needAuth": rows[name].changes}


class ClusterAdmin:
    """Settings of the whole cluster."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def methods(self) -> dict[str, Method]:
        return {
            "admin_query_server_version": Method(self.version),
            "admin_query_master_group_info": Method(self.masters),
            "admin_query_cluster_default_setting": Method(self.query),
            "admin_set_cluster_default_setting": Method(self.set, changes=True),
            "admin_update_cluster_default_setting": Method(self.update, changes=True),
            "admin_query_def_flow_control_rule": Method(self.query_rules),
            "admin_set_def_flow_control_rule": Method(self.set_rules, changes=True),
            "admin_upd_def_flow_control_rule": Method(self.update_rules, changes=True),
            "admin_rmv_def_flow_control_rule": Method(self.remove_rules, changes=True),
        }

    def version(self, params: Params) -> Answer:
        del params
        return found([{"version": f"coherer-{metadata.version('coherer')}"}])

    def masters(self, params: Params) -> Answer:
        """admin_query_master_group_info: this master only; it does not know others."""
        del params
        options = self._context.state.options
        status = "UNKNOWN" if self._context.state.standby else "MASTER"
        node: Answer = {
            "index": 1,
            "name": f"{options.host}:{options.port}",
            "hostName": options.host,
            "port": str(options.port),
            "statusInfo": {"nodeStatus": status, "joinTime": "-"},
        }
        return {
            **found([node]),
            "groupName": "coherer",
            "isPrimaryNodeActive": not self._context.state.standby,
            "groupStatus": "Running-ReadWrite",
        }

    def query(self, params: Params) -> Answer:
        """admin_query_cluster_default_setting; no records until a setting has been changed."""
        del params
        cluster = self._context.catalog.cluster
        return found([] if cluster.stamp.serial == UNDEFINED else [_cluster_form(cluster)])

    def set(self, params: Params) -> Answer:
        self._change(params, create_change(self._context, params))
        return self.query(params)

    def update(self, params: Params) -> Answer:
        self._change(params, update_change(self._context, params))
        return self.query(params)

    def query_rules(self, params: Params) -> Answer:
        """admin_query_def_flow_control_rule: the same record in its legacy form."""
        del params
        cluster = self._context.catalog.cluster
        return found([] if cluster.stamp.serial == UNDEFINED else [_rules_form(cluster)])

    def set_rules(self, params: Params) -> Answer:
        self._change(params, create_change(self._context, params), rule_status(params))
        return self.query_rules(params)

    def update_rules(self, params: Params) -> Answer:
        self._change(params, update_change(self._context, params), rule_status(params))
        return self.query_rules(params)

    def remove_rules(self, params: Params) -> Answer:
        change = update_change(self._context, params)
        cleared = {"flow_enabled": False, "flow_rules": "[]"}
        self._context.catalog.set_cluster(cleared, change)
        self._context.commit_changes()
        return self.query_rules(params)

    def _change(
        self, params: Params, change: Change, extra: dict[str, object] | None = None
    ) -> None:
        cluster = self._context.catalog.cluster
        changes = flow_changes(params)
        changes |= extra or {}
        for field, name in (
            ("broker_port", "brokerPort"),
            ("broker_tls_port", "brokerTLSPort"),
            ("broker_web_port", "brokerWebPort"),
        ):
            number = params.number(name)
            if number is not None:
                changes[field] = number
        limit = params.number("maxMsgSizeInMB")
        if limit is not None:
            changes["message_bytes_max"] = megabytes(limit)
        props = props_changes(params)
        if props:
            changes["props"] = msgspec.structs.replace(cluster.props, **props)
        new = msgspec.structs.replace(cluster, **changes)
        _check_ports(new.broker_port, new.broker_tls_port, new.broker_web_port)
        self._context.catalog.set_cluster(changes, change)
        self._context.commit_changes()


def _cluster_form(cluster: ClusterSetting) -> Answer:
    rules = rules_form(cluster.flow_rules)
    return {
        "brokerPort": cluster.broker_port,
        "brokerTLSPort": cluster.broker_tls_port,
        "brokerWebPort": cluster.broker_web_port,
        "maxMsgSizeInMB": max(cluster.message_bytes_max // _MIB, 1),
        "qryPriorityId": cluster.priority,
        "flowCtrlEnable": cluster.flow_enabled,
        "flowCtrlRuleCount": len(rules),
        "flowCtrlInfo": rules,
        **props_form(cluster.props),
        **stamp_form(cluster.stamp),
    }


def _rules_form(cluster: ClusterSetting) -> Answer:
    rules: list[Json] = rules_form(cluster.flow_rules)
    return {
        "statusId": int(cluster.flow_enabled),
        "maxMsgSizeInMB": max(cluster.message_bytes_max // _MIB, 1),
        "qryPriorityId": cluster.priority,
        "ruleCnt": len(rules),
        "flowCtrlInfo": rules,
        **stamp_form(cluster.stamp),
    }


class BrokerAdmin:
    """The records of brokers, and their state (section 10.2)."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def methods(self) -> dict[str, Method]:
        return {
            "admin_query_broker_configure": Method(self.query),
            "admin_query_broker_run_status": Method(self.status),
            "admin_add_broker_configure": Method(self.add, changes=True),
            "admin_batch_add_broker_configure": Method(self.add_batch, changes=True),
            "admin_bath_add_broker_configure": Method(self.add_batch, changes=True),
            "admin_update_broker_configure": Method(self.update, changes=True),
            "admin_batch_update_broker_configure": Method(self.update_batch, changes=True),
            "admin_delete_broker_configure": Method(self.delete, changes=True),
            "admin_online_broker_configure": Method(self._status_setter(ManageStatus.ONLINE), True),
            "admin_offline_broker_configure": Method(
                self._status_setter(ManageStatus.OFFLINE), True
            ),
            "admin_reload_broker_configure": Method(self.reload, changes=True),
            "admin_set_broker_read_or_write": Method(self.open, changes=True),
            "admin_release_broker_autoforbidden_status": Method(self.release, changes=True),
        }

    # -- queries

    def query(self, params: Params) -> Answer:
        with_topics = params.flag("withTopic")
        return found(self._form(record, with_topics) for record in self._matching(params))

    def _matching(self, params: Params) -> list[BrokerRecord]:
        """The chosen brokers with the values in the parameters."""
        status, topic_status = _manage_status(params), params.number("topicStatusId")
        numbers, props = self._numbers(params), props_changes(params)
        catalog = self._context.catalog
        return [
            record
            for record in self._chosen(params)
            if has_values(record, numbers)
            and has_values(record.props, props)
            and status in (None, record.status)
            and (
                topic_status is None
                or any(topic.status == topic_status for topic in catalog.topics_of(record.id))
            )
        ]

    def status(self, params: Params) -> Answer:
        forms = [self._run_form(record) for record in self._chosen(params)]
        for flag, field in (
            ("onlyAbnormal", "isRepAbnormal"),
            ("onlyAutoForbidden", "isAutoForbidden"),
            ("onlyEnableTLS", "enableTLS"),
        ):
            if params.flag(flag):
                forms = [form for form in forms if form[field] is True]
        return found(forms)

    def _chosen(self, params: Params) -> list[BrokerRecord]:
        numbers = set(params.numbers("brokerId"))
        hosts, topics = set(params.words("brokerIp")), params.words("topicName")
        catalog, include = self._context.catalog, params.flag("isInclude") is not False
        holders = {broker for topic in topics for broker in catalog.topics.get(topic, {})}
        return [
            record
            for _, record in sorted(catalog.brokers.items())
            if (not numbers or record.id in numbers)
            and (not hosts or record.host in hosts)
            and (not topics or (record.id in holders) is include)
        ]

    def _form(self, record: BrokerRecord, with_topics: bool | None) -> Answer:
        is_running = self._context.broker_registry.get(record.id) is not None
        form: Answer = {
            "brokerId": record.id,
            "brokerIp": record.host,
            "brokerPort": record.port,
            "brokerTLSPort": record.tls_port,
            "brokerWebPort": record.web_port,
            "manageStatus": record.status.text,
            "isConfChanged": is_running and not self._is_applied(record.id),
            "isConfLoaded": self._is_applied(record.id),
            "regionId": record.region,
            "groupId": record.group,
            **props_form(record.props),
            **stamp_form(record.stamp),
        }
        if with_topics:
            form["topicSet"] = [
                deployment_form(self._context.catalog, deployment)
                for deployment in self._context.catalog.topics_of(record.id)
            ]
        return form

    def _run_form(self, record: BrokerRecord) -> Answer:
        running = self._context.broker_registry.get(record.id)
        stopped = self._context.broker_registry.stopped(record.id)
        form: Answer = {
            "brokerId": record.id,
            "brokerIp": record.host,
            "brokerPort": record.port,
            "brokerWebPort": record.web_port,
            "manageStatus": record.status.text,
            "brokerTLSPort": record.tls_port,
            "isRepAbnormal": False,
            "isAutoForbidden": any(stopped),
        }
        if running is None:
            draft = record.status is ManageStatus.DRAFT
            form["runStatus"] = "-" if draft else "unRegister"
            for name in (
                "enableTLS",
                "subStatus",
                "isConfChanged",
                "isConfLoaded",
                "isBrokerOnline",
                "brokerVersion",
                "acceptPublish",
                "acceptSubscribe",
            ):
                form[name] = "-"
            return form
        applied = self._is_applied(record.id)
        form |= {
            "enableTLS": running.secure,
            "isRepAbnormal": PAUSED_BY_ERRORS in (running.read_status, running.write_status),
            "runStatus": "running",
            "subStatus": "idle" if applied else "processing_event",
            "isConfChanged": _text(not applied),
            "isConfLoaded": _text(applied),
            "isBrokerOnline": _text(running.online),
            "brokerVersion": running.version or "-",
            "acceptPublish": _text(running.online and record.publishable and not stopped[1]),
            "acceptSubscribe": _text(running.online and record.subscribable and not stopped[0]),
        }
        if not applied:
            form["stepOp"] = 3
        return form

    def _is_applied(self, broker: int) -> bool:
        """Whether the broker has applied its configuration."""
        running = self._context.broker_registry.get(broker)
        if running is None:
            return False
        return running.configuration == self._context.master.brokers.configurations.of(broker).key

    # -- changes

    def add(self, params: Params) -> Answer:
        return execute(self._context, self._add_steps(params))

    def add_batch(self, params: Params) -> Answer:
        return execute_batch(self._context, params, "brokerJsonSet", self._add_steps)

    def _add_steps(self, params: Params) -> list[Step]:
        change = create_change(self._context, params)
        host = params.required("brokerIp")
        number = params.number("brokerId") or _id_of(host)
        cluster = self._context.catalog.cluster
        fields: dict[str, object] = {
            "port": cluster.broker_port,
            "tls_port": cluster.broker_tls_port,
            "web_port": cluster.broker_web_port,
            **self._numbers(params),
        }
        props = msgspec.structs.replace(cluster.props, **props_changes(params))
        record = BrokerRecord(id=number, host=host, props=props)
        record = msgspec.structs.replace(record, **fields)

        def apply() -> None:
            _check_ports(record.port, record.tls_port, record.web_port)
            self._context.catalog.add_broker(record, change)

        return [({"brokerId": number, "brokerIp": host}, apply)]

    def update(self, params: Params) -> Answer:
        return execute(self._context, self._update_steps(params))

    def update_batch(self, params: Params) -> Answer:
        return execute_batch(self._context, params, "brokerJsonSet", self._update_steps)

    def _update_steps(self, params: Params) -> list[Step]:
        change = update_change(self._context, params)
        props, numbers = props_changes(params), self._numbers(params)

        def apply(broker: int) -> None:
            catalog = self._context.catalog
            fields, old = dict(numbers), catalog.broker(broker)
            if props:
                fields["props"] = msgspec.structs.replace(old.props, **props)
            if not fields:
                raise unchanged_error("The request changes nothing!")
            new = msgspec.structs.replace(old, **fields)
            _check_ports(new.port, new.tls_port, new.web_port)
            catalog.update_broker(broker, fields, change)

        return self._steps(params, apply)

    def delete(self, params: Params) -> Answer:
        """admin_delete_broker_configure: succeeds even if there is no such broker."""
        update_change(self._context, params)
        catalog = self._context.catalog

        def remove(broker: int) -> None:
            if broker in catalog.brokers:
                catalog.remove_broker(broker)

        return self._each(params, remove)

    def reload(self, params: Params) -> Answer:
        """admin_reload_broker_configure: only a check, because changes take effect at once."""
        update_change(self._context, params)

        def check(broker: int) -> None:
            record = self._context.catalog.broker(broker)
            if not record.publishable and not record.subscribable:
                text = f"Broker {broker} is {record.status.text}: set it online first."
                raise CatalogError(OpCode.ILLEGAL_STATUS, text)

        return self._each(params, check)

    def open(self, params: Params) -> Answer:
        change = update_change(self._context, params)
        publish, subscribe = params.flag("acceptPublish"), params.flag("acceptSubscribe")

        def apply(broker: int) -> None:
            record = self._context.catalog.broker(broker)
            wanted = (
                record.publishable if publish is None else publish,
                record.subscribable if subscribe is None else subscribe,
            )
            status = {
                (True, True): ManageStatus.ONLINE,
                (False, True): ManageStatus.ONLY_READ,
                (True, False): ManageStatus.ONLY_WRITE,
                (False, False): ManageStatus.OFFLINE,
            }[wanted]
            if status is record.status:
                raise unchanged_error(f"Unchanged  manageStatus({status.text})!")
            self._context.catalog.set_status(broker, status, change)

        return self._each(params, apply)

    def release(self, params: Params) -> Answer:
        update_change(self._context, params)
        for broker in broker_ids(params):
            self._context.broker_registry.release(broker, self._context.state.now_ms())
        self._context.commit_changes()
        return done()

    def _status_setter(self, status: ManageStatus) -> Callable[[Params], Answer]:
        def call(params: Params) -> Answer:
            change = update_change(self._context, params)

            def apply(broker: int) -> None:
                if self._context.catalog.broker(broker).status is status:
                    raise unchanged_error(f"Unchanged  manageStatus({status.text})!")
                self._context.catalog.set_status(broker, status, change)

            return self._each(params, apply)

        return call

    def _each(self, params: Params, apply: Callable[[int], object]) -> Answer:
        return execute(self._context, self._steps(params, apply))

    def _steps(self, params: Params, apply: Callable[[int], object]) -> list[Step]:
        known = self._context.catalog.brokers
        return [
            (
                {"brokerId": number, "brokerIp": known[number].host if number in known else ""},
                partial(apply, number),
            )
            for number in broker_ids(params)
        ]

    def _numbers(self, params: Params) -> dict[str, object]:
        given = ((field, params.number(name, least=0)) for field, name in _NUMBERS.items())
        fields: dict[str, object] = {field: value for field, value in given if value is not None}
        for field, name in _NUMBERS.items():
            value = fields.get(field, 1)
            if field.endswith("port") and not 0 < int(str(value)) <= 0xFFFF:
                raise ParamError(f"illegal value for {name}, value must be in 1..65535")
        return fields


def _id_of(host: str) -> int:
    """The default id of a new broker: its IPv4 address as a number."""
    parts = host.split(".")
    if len(parts) != 4 or not all(part.isdecimal() and int(part) < 256 for part in parts):
        raise ParamError("Parameter brokerId is missing or value is blank!")
    first, second, third, fourth = map(int, parts)
    return abs((first << 24 | second << 16 | third << 8 | fourth) - (first >> 7 << 32))


def _check_ports(port: int, tls_port: int, web_port: int) -> None:
    if web_port in (port, tls_port):
        raise CatalogError(
            OpCode.ILLEGAL_VALUE,
            f"brokerWebPort is {web_port}; it must differ from brokerPort and brokerTLSPort.",
        )


def _manage_status(params: Params) -> ManageStatus | None:
    text = params.get("manageStatus", "").strip()
    for status in ManageStatus:
        if status.text == text:
            return status
    if text:
        names = ", ".join(status.text for status in ManageStatus)
        raise ParamError(f"illegal value for manageStatus, value must be one of {names}")
    return None


def _text(value: bool) -> str:
    return "true" if value else "false"
