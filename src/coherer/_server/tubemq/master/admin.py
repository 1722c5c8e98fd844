"""The master's methods of the HTTP administration: cluster settings, and the table of all (10).

All methods of Java's master, in its forms. What cannot be is refused by the method's name. Records
show times in the machine's zone, as Java does.
"""

from __future__ import annotations

from importlib import metadata

import msgspec

from coherer._rules.tubemq.configuration import UNDEFINED, ClusterSetting
from coherer._rules.tubemq.fleet import PAUSED_BY_ERRORS
from coherer._rules.tubemq.rebalance import GroupKind
from coherer._server.node.admin import AdminApp, Guard, Method
from coherer._server.node.admin_params import Answer, Json, ParamError, Params, found
from coherer._server.node.admin_stats import (
    ALL,
    SERVICE,
    WEB,
    Histogram,
    Switches,
    WebCalls,
    metrics_form,
    time_text,
)
from coherer._server.tubemq.master.admin_brokers import BrokerAdmin
from coherer._server.tubemq.master.admin_forms import (
    Office,
    adding,
    flow_changes,
    megabytes,
    props_changes,
    props_form,
    rules_form,
    stamp_form,
)
from coherer._server.tubemq.master.admin_groups import GroupAdmin
from coherer._server.tubemq.master.admin_old_groups import OldGroupAdmin
from coherer._server.tubemq.master.admin_topics import TopicAdmin
from coherer._server.tubemq.master.master import Master

_MIB = 1024 * 1024


def master_admin(master: Master, guard: Guard | None = None) -> AdminApp:
    """The administration of a master.

    Args:
        master: the master.
        guard: who may use it; when None, changes need the token of the master's options.

    >>> app = master_admin(Master())
    >>> app.handle("admin_query_broker_configure", {})
    {'result': True, 'errCode': 0, 'errMsg': 'OK', 'data': [], 'count': 0}
    """
    office = Office(master)
    calls = WebCalls(master.state.wall_ms)
    rows: dict[str, Method] = {
        **BrokerAdmin(office).methods(),
        **TopicAdmin(office).methods(),
        **GroupAdmin(office).methods(),
        **OldGroupAdmin(office).methods(),
        **ClusterAdmin(office).methods(),
        **MasterFigures(office, calls).methods(),
        **Switches(calls, (ALL, SERVICE, WEB)).methods(changes=True),
        "admin_transfer_current_master": Method(_one_master, changes=True),
    }
    rows["admin_get_methods"] = Method(lambda _: found(_method_form(rows, name) for name in rows))
    rows = calls.counted(rows)
    options = master.state.options
    text = f"{options.host}:{options.port} is not master now"
    guard = guard or Guard(options.admin_token)
    return AdminApp(rows, guard, closed=lambda: text if master.standby else None)


def _one_master(params: Params) -> Answer:
    del params
    raise ParamError(
        "admin_transfer_current_master is not supported: this cluster has one master. "
        "Start a standby and stop this one to move it."
    )


class MasterFigures:
    """What a master counts.

    Args:
        office: the master.
        calls: the calls of its administration.
    """

    def __init__(self, office: Office, calls: WebCalls) -> None:
        self._office = office
        self._calls = calls

    def methods(self) -> dict[str, Method]:
        """By name."""
        return {"admin_get_metrics_info": Method(self.metrics)}

    def metrics(self, params: Params) -> Answer:
        """admin_get_metrics_info; with `needRefresh` what grows begins anew."""
        state, refresh = self._office.state, params.flag("needRefresh") or False
        service = self._service()
        if refresh:
            state.counts.clear(state.wall_ms())
        calls = self._calls.form(refresh=refresh)
        return found(metrics_form(state.options.host, "Master", state.wall_ms(), service, calls))

    def _service(self) -> Answer:
        state = self._office.state
        counts, fleet, groups = state.counts, list(state.fleet), list(state.groups)
        choosers = [g for g in groups if g.subscription.kind is GroupKind.CLIENT_BALANCED]
        members = [member for group in groups for member in group.members.values()]
        stopped = [state.fleet.stopped(broker.id) for broker in fleet]
        abnormal = [b for b in fleet if PAUSED_BY_ERRORS in (b.read_status, b.write_status)]
        return {
            "reset_time": time_text(counts.since_ms),
            "csm_online_group_cnt": len(groups),
            "csm_group_timeout_cnt": counts.groups_timed_out,
            "csm_client_bal_group_cnt": len(choosers),
            "client_balance_timeout_cnt": counts.choosers_timed_out,
            "server_balance_normal": counts.balances.form(),
            "server_balance_reset": Histogram().form(),
            "consumer_online_cnt": len(members),
            "consumer_timeout_cnt": counts.consumers_timed_out,
            "consumer_con_event_cnt": sum(len(member.takes) for member in members),
            "consumer_discon_event_cnt": sum(len(member.gives) for member in members),
            "producer_online_cnt": len(state.producers),
            "producer_timeout_cnt": counts.producers_timed_out,
            "broker_configured_cnt": len(state.catalog.brokers),
            "broker_online_cnt": sum(broker.online for broker in fleet),
            "broker_timeout_cnt": counts.brokers_timed_out,
            "broker_abnormal_cnt": len(abnormal),
            "broker_forbidden_cnt": sum(any(pair) for pair in stopped),
        }


def elsewhere(master: Master) -> str | None:
    """Where the active master's administration is, as far as a standby has been told."""
    return master.state.options.active_admin_url if master.standby else None


def _method_form(rows: dict[str, Method], name: str) -> Answer:
    return {"method": name, "needAuth": rows[name].changes}


class ClusterAdmin:
    """Settings of the whole cluster."""

    def __init__(self, office: Office) -> None:
        self._office = office

    def methods(self) -> dict[str, Method]:
        """By name."""
        return {
            "admin_query_server_version": Method(self.version),
            "admin_query_master_group_info": Method(self.masters),
            "admin_query_cluster_default_setting": Method(self.query),
            "admin_set_cluster_default_setting": Method(self.change, changes=True),
            "admin_update_cluster_default_setting": Method(self.change, changes=True),
            "admin_query_def_flow_control_rule": Method(self.query_rules),
            "admin_set_def_flow_control_rule": Method(self.set_rules, changes=True),
            "admin_upd_def_flow_control_rule": Method(self.set_rules, changes=True),
            "admin_rmv_def_flow_control_rule": Method(self.remove_rules, changes=True),
        }

    def version(self, params: Params) -> Answer:
        """admin_query_server_version."""
        del params
        return found([{"version": f"coherer-{metadata.version('coherer')}"}])

    def masters(self, params: Params) -> Answer:
        """admin_query_master_group_info: this master only; it knows of no others."""
        del params
        options = self._office.state.options
        status = "UNKNOWN" if self._office.state.standby else "MASTER"
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
            "isPrimaryNodeActive": not self._office.state.standby,
            "groupStatus": "Running-ReadWrite",
        }

    def query(self, params: Params) -> Answer:
        """admin_query_cluster_default_setting; nothing while nothing was set."""
        del params
        cluster = self._office.catalog.cluster
        return found([] if cluster.stamp.serial == UNDEFINED else [_cluster_form(cluster)])

    def change(self, params: Params) -> Answer:
        """admin_set_cluster_default_setting, admin_update_cluster_default_setting."""
        self._change(params)
        return self.query(params)

    def query_rules(self, params: Params) -> Answer:
        """admin_query_def_flow_control_rule: the same record in its old form."""
        del params
        cluster = self._office.catalog.cluster
        return found([] if cluster.stamp.serial == UNDEFINED else [_rules_form(cluster)])

    def set_rules(self, params: Params) -> Answer:
        """admin_set_def_flow_control_rule: with rules given and no word on it, they count."""
        switch: dict[str, object] = {}
        if params.get("flowCtrlInfo") and params.flag("flowCtrlEnable") is None:
            status = params.number("statusId")
            switch["flow_enabled"] = True if status is None else status == 1
        self._change(params, switch)
        return self.query_rules(params)

    def remove_rules(self, params: Params) -> Answer:
        """admin_rmv_def_flow_control_rule."""
        change = adding(self._office, params)
        cleared = {"flow_enabled": False, "flow_rules": "[]"}
        self._office.catalog.set_cluster(cleared, change)
        self._office.settle()
        return self.query_rules(params)

    def _change(self, params: Params, extra: dict[str, object] | None = None) -> None:
        cluster = self._office.catalog.cluster
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
        self._office.catalog.set_cluster(changes, adding(self._office, params))
        self._office.settle()


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
