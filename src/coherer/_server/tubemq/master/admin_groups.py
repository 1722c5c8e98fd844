"""The master's HTTP methods for consumer groups (docs/protocol/tubemq.md, sections 10.4, 10.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from coherer._rules.tubemq.groups import ConsumerGroup, GroupKind, Member
from coherer._rules.tubemq.records import UNDEFINED, CatalogError, GroupControl, OpCode
from coherer._server.http.app import Method
from coherer._server.http.params import Answer, Json, ParamError, Params, done, found
from coherer._server.tubemq.master.admin_answers import consume_control_form, rules_form, stamp_form
from coherer._server.tubemq.master.admin_changes import (
    AdminContext,
    Step,
    create_change,
    execute,
    execute_batch,
    outcomes,
    update_change,
)
from coherer._server.tubemq.master.admin_parameters import (
    deployed_topics,
    flow_changes,
    group_controls,
    required_lists,
    rights,
    rule_status,
    wanted_rules,
    wanted_settings,
)

_KINDS = {
    GroupKind.NORMAL: "unbound",
    GroupKind.BOUND: "bound",
    GroupKind.CLIENT_BALANCED: "client-rebalance",
}


class GroupAdmin:
    """The members of groups, their partitions, and the settings and rights of groups."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def methods(self) -> dict[str, Method]:
        """The methods by name, legacy names included."""
        return {
            "admin_query_sub_info": Method(self.query),
            "admin_query_consume_group_detail": Method(self.detail),
            "admin_query_group_info_by_topic": Method(self.by_topic),
            "admin_query_client_balance_group_set": Method(self.client_balanced),
            "admin_set_client_balance_group_consume_from_max": Method(self.skip, changes=True),
            "admin_query_group_resctrl_info": Method(self.query_controls),
            "admin_add_group_resctrl_info": _change(self.control, new=True),
            "admin_update_group_resctrl_info": _change(self.control, new=False),
            "admin_batch_add_group_resctrl_info": _change(self.control_batch, new=True),
            "admin_batch_update_group_resctrl_info": _change(self.control_batch, new=False),
            "admin_delete_group_resctrl_info": Method(self.release, changes=True),
            "admin_query_booked_resctrl_groups": Method(self.controlled),
            "admin_query_group_flow_control_rule": Method(self.query_rules),
            "admin_set_group_flow_control_rule": Method(self.set_rules, changes=True),
            "admin_upd_group_flow_control_rule": Method(self.update_rules, changes=True),
            "admin_rmv_group_flow_control_rule": Method(self.remove_rules, changes=True),
            "admin_query_group_csmctrl_info": Method(self.query_rights),
            "admin_add_group_csmctrl_info": _change(self.grant, new=True),
            "admin_update_group_csmctrl_info": _change(self.grant, new=False),
            "admin_batch_add_group_csmctrl_info": _change(self.grant_batch, new=True),
            "admin_batch_update_group_csmctrl_info": _change(self.grant_batch, new=False),
            "admin_delete_group_csmctrl_info": Method(self.revoke, changes=True),
            "admin_batch_delete_group_csmctrl_info": Method(self.revoke_batch, changes=True),
            "admin_query_booked_csmctrl_groups": Method(self.booked),
            "admin_rebalance_group_allocate": Method(self.suspend, changes=True),
        }

    # -- members

    def query(self, params: Params) -> Answer:
        names = set(params.words("groupName") or params.words("consumeGroup"))
        topics = set(params.words("topicName"))
        return found(
            {
                "consumeGroup": group.name,
                "topicSet": _listed(group.subscription.topics),
                "consumerNum": len(group.members),
            }
            for group in self._context.state.groups
            if (not names or group.name in names)
            and (not topics or topics & group.subscription.topics)
        )

    def by_topic(self, params: Params) -> Answer:
        wanted = params.words("topicName") or sorted(self._context.catalog.topics)
        forms: list[Answer] = []
        for topic in wanted:
            names = [g.name for g in self._context.state.groups if topic in g.subscription.topics]
            if topic in self._context.catalog.topics:
                count = len(names)
                forms.append({"topicName": topic, "groupSet": _listed(names), "groupCnt": count})
        return found(forms)

    def detail(self, params: Params) -> Answer:
        """admin_query_consume_group_detail: the members and partitions of a group."""
        name = (params.get("groupName") or params.required("consumeGroup")).strip()
        group = self._context.state.groups.get(name)
        members = list(group.members.values()) if group else []
        topics = group.subscription.topics if group else frozenset[str]()
        answer: Answer = {
            "result": True,
            "errCode": 0,
            "errMsg": "OK",
            "count": len(members),
            "topicSet": _listed(topics),
            "consumeGroup": name,
            "re-rebalance": {} if group is None else _suspended_form(group),
            "isBandConsume": _KINDS[group.subscription.kind] if group else "unbound",
        }
        if group is not None:
            answer |= _kind_form(group)
        answer["rebInfo"] = self._balance_form(group)
        filters: Mapping[str, frozenset[str]] = group.subscription.filters if group else {}
        answer["filterConds"] = {topic: _listed(words) for topic, words in filters.items()}
        answer["data"] = [self._member_form(group, member) for member in members if group]
        return answer

    def _balance_form(self, group: ConsumerGroup | None) -> Answer:
        if group is None or group.subscription.kind is not GroupKind.NORMAL:
            return {"isRebalanced": False}
        control = self._context.catalog.group_controls.get(group.name)
        options = self._context.state.options
        brokers = {p.broker for member in group.members.values() for p in member.held}
        return {
            "isRebalanced": group.allocated,
            "checkPasted": True,
            "defBClientRate": options.group_broker_rate_max,
            "confBClientRate": control.broker_rate_max if control else UNDEFINED,
            "curBClientRate": len(brokers) // max(len(group.members), 1),
        }

    def _member_form(self, group: ConsumerGroup, member: Member) -> Answer:
        form: Answer = {
            "consumerId": member.id,
            "receivedFrom": member.address,
            "isOverTLS": member.secure,
        }
        if group.subscription.kind is GroupKind.BOUND:
            named: list[Json] = [
                {"partitionKey": f"{p.broker}:{p.topic}:{p.number}", "Offset": offset}
                for p, offset in member.named.items()
            ]
            form |= {"initReSetPartCount": len(named), "initReSetPartInfo": named}
        if group.subscription.kind is GroupKind.CLIENT_BALANCED:
            form |= {"sourceCount": group.subscription.source_count, "nodeId": member.node_id}
        catalog, held = self._context.catalog.brokers, sorted(member.held)
        form["parCount"] = len(held)
        form["parInfo"] = [
            {
                "partId": p.number,
                "brokerAddr": f"{p.broker}:{catalog[p.broker].host}:{catalog[p.broker].port}",
                "topicName": p.topic,
            }
            for p in held
            if p.broker in catalog
        ]
        return form

    # -- client-balanced groups

    def client_balanced(self, params: Params) -> Answer:
        del params
        kind = GroupKind.CLIENT_BALANCED
        names: list[Json] = [
            g.name for g in self._context.state.groups if g.subscription.kind is kind
        ]
        return {"result": True, "errCode": 0, "errMsg": "OK", "data": names, "count": len(names)}

    def skip(self, params: Params) -> Answer:
        """admin_set_client_balance_group_consume_from_max: continue from the newest messages."""
        update_change(self._context, params)
        groups = [
            self._context.state.groups.get(name) for name in required_lists(params, "groupName")[0]
        ]
        kind = GroupKind.CLIENT_BALANCED
        chosen = [g for g in groups if g is not None and g.subscription.kind is kind]
        if not chosen:
            raise ParamError("all consumer groups are not client balance groups")
        for group in chosen:
            group.from_max_id = self._context.state.new_id()
        return done()

    # -- forced rebalance

    def suspend(self, params: Params) -> Answer:
        """admin_rebalance_group_allocate: make members give up all their partitions.

        They get new partitions after `reJoinWait` balance periods; by default at once.
        """
        update_change(self._context, params)
        name, rounds = params.required("groupName"), params.number("reJoinWait") or 0
        (members,) = required_lists(params, "consumerId")
        if rounds < 0:
            raise ParamError("illegal value for reJoinWait, value must be 0 or more")
        state = self._context.state
        group = state.groups.get(name)
        if group is None:
            raise ParamError(f"The group({name}) not online!")
        for member in members:
            if member in group.suspended:
                raise ParamError(f"Duplicated set for consumerId({member}) in group({name})!")
        now_ms = state.now_ms()
        group.suspend(members, now_ms, now_ms + rounds * state.options.balance_period_ms)
        return done()

    # -- settings

    def query_controls(self, params: Params) -> Answer:
        return found(
            _control_form(control) for control in self._controls(params, wanted_settings(params))
        )

    def query_rules(self, params: Params) -> Answer:
        """admin_query_group_flow_control_rule: the same records in their legacy form."""
        return found(
            _rules_form(control) for control in self._controls(params, wanted_rules(params))
        )

    def controlled(self, params: Params) -> Answer:
        """admin_query_booked_resctrl_groups: the names of the groups."""
        return _named(control.group for control in self._controls(params, wanted_settings(params)))

    def control(self, params: Params, *, new: bool) -> Answer:
        return execute(self._context, self._setting_steps(params, new=new))

    def control_batch(self, params: Params, *, new: bool) -> Answer:
        plan = partial(self._setting_steps, new=new)
        return execute_batch(self._context, params, "groupResCtrlJsonSet", plan)

    def _setting_steps(self, params: Params, *, new: bool) -> list[Step]:
        changes = flow_changes(params)
        check = params.flag("resCheckEnable")
        rate = params.number("alwdBrokerClientRate", least=0)
        if check is not None:
            changes["check_resources"] = check
        if rate is not None:
            changes["broker_rate_max"] = rate
        change = (create_change if new else update_change)(self._context, params)
        known = self._context.catalog.knows_group

        def apply(name: str) -> None:
            if known(name) is new:
                raise _existing(f"group {name}") if new else _missing(f"group {name}")
            self._context.catalog.control_group(name, changes, change)

        return self._steps(params, apply)

    def set_rules(self, params: Params) -> Answer:
        """admin_set_group_flow_control_rule: for groups with and without settings."""
        change, changes = create_change(self._context, params), _rule_changes(params)

        def apply(name: str) -> None:
            self._context.catalog.control_group(name, changes, change)

        return execute(self._context, self._steps(params, apply))

    def update_rules(self, params: Params) -> Answer:
        change, changes = update_change(self._context, params), _rule_changes(params)

        def apply(name: str) -> None:
            if not self._context.catalog.knows_group(name):
                raise _missing(f"group {name}")
            self._context.catalog.control_group(name, changes, change)

        return execute(self._context, self._steps(params, apply))

    def remove_rules(self, params: Params) -> Answer:
        """admin_rmv_group_flow_control_rule: succeeds even if the group has none."""
        change = update_change(self._context, params)
        changes: dict[str, object] = {"flow_enabled": False, "flow_rules": "[]"}

        def apply(name: str) -> None:
            if name in self._context.catalog.group_controls:
                self._context.catalog.control_group(name, changes, change)

        return execute(self._context, self._steps(params, apply))

    def release(self, params: Params) -> Answer:
        """admin_delete_group_resctrl_info: succeeds even if the group has none."""
        update_change(self._context, params)
        return execute(self._context, self._steps(params, self._context.catalog.release_group))

    def _controls(self, params: Params, wanted: Mapping[str, object]) -> list[GroupControl]:
        return group_controls(self._context.catalog, params, wanted)

    def _steps(self, params: Params, apply: Callable[[str], object]) -> list[Step]:
        (names,) = required_lists(params, "groupName")
        return [({"groupName": name}, partial(apply, name)) for name in names]

    # -- rights

    def query_rights(self, params: Params) -> Answer:
        return found(
            consume_control_form(control) for control in rights(self._context.catalog, params)
        )

    def booked(self, params: Params) -> Answer:
        """admin_query_booked_csmctrl_groups: the names of the groups."""
        return _named(control.group for control in rights(self._context.catalog, params))

    def grant(self, params: Params, *, new: bool) -> Answer:
        return execute(self._context, self._grant_steps(params, new=new))

    def grant_batch(self, params: Params, *, new: bool) -> Answer:
        plan = partial(self._grant_steps, new=new)
        return execute_batch(self._context, params, "groupCsmJsonSet", plan)

    def _grant_steps(self, params: Params, *, new: bool) -> list[Step]:
        changes: dict[str, object] = {}
        enabled, filtered = params.flag("consumeEnable"), params.flag("filterEnable")
        if enabled is not None:
            changes["enabled"] = enabled
        if filtered is not None:
            changes["filtered"] = filtered
        if "disableCsmRsn" in params:
            changes["reason"] = params["disableCsmRsn"]
        if "filterConds" in params:
            changes["filters"] = frozenset(params.words("filterConds"))
        change = (create_change if new else update_change)(self._context, params)
        catalog = self._context.catalog

        def apply(topic: str, group: str) -> None:
            if ((topic, group) in catalog.consume_controls) is new:
                what = f"group {group} and topic {topic}"
                raise _existing(what) if new else _missing(what)
            catalog.control_consumption(topic, group, changes, change)

        (groups,) = required_lists(params, "groupName")
        return [
            (
                {"groupName": group, "topicName": topic},
                partial(apply, topic, group),
            )
            for topic in deployed_topics(self._context.catalog, params)
            for group in groups
        ]

    def revoke_batch(self, params: Params) -> Answer:
        return execute_batch(self._context, params, "groupCsmJsonSet", self._revoke_steps)

    def _revoke_steps(self, params: Params) -> list[Step]:
        update_change(self._context, params)
        catalog = self._context.catalog
        (groups,) = required_lists(params, "groupName")
        return [
            (
                {"groupName": group, "topicName": topic},
                partial(catalog.release_consumption, group, [topic]),
            )
            for topic in deployed_topics(self._context.catalog, params)
            for group in groups
        ]

    def revoke(self, params: Params) -> Answer:
        update_change(self._context, params)
        catalog = self._context.catalog
        (groups,) = required_lists(params, "groupName")
        topics = params.words("topicName") or None

        def apply(item: Mapping[str, Json]) -> None:
            if not catalog.release_consumption(str(item["groupName"]), topics):
                raise _missing(f"group {item['groupName']}")

        named = params.get("topicName", "")
        answer = outcomes([{"groupName": name, "topicName": named} for name in groups], apply)
        self._context.commit_changes()
        return answer


def _change(call: Callable[..., Answer], *, new: bool) -> Method:
    """A method that adds records (`new`), or changes those that there are."""
    return Method(partial(call, new=new), changes=True)


def _rule_changes(params: Params) -> dict[str, object]:
    return flow_changes(params) | rule_status(params)


def _existing(what: str) -> CatalogError:
    return CatalogError(OpCode.EXISTED, f"There are settings for {what} already: update them.")


def _missing(what: str) -> CatalogError:
    return CatalogError(OpCode.NOT_EXIST, f"There are no settings for {what}.")


def _named(names: Iterable[str]) -> Answer:
    data: list[Json] = [*dict.fromkeys(names)]
    return {"result": True, "errCode": 0, "errMsg": "OK", "data": data, "count": len(data)}


def _suspended_form(group: ConsumerGroup) -> Answer:
    return {
        member: {"createTime": order.since_ms, "reqType": int(order.until_ms > order.since_ms)}
        for member, order in group.suspended.items()
    }


def _listed(words: Iterable[str]) -> list[Json]:
    return [*sorted(words)]


def _kind_form(group: ConsumerGroup) -> Answer:
    if group.subscription.kind is not GroupKind.BOUND:
        return {}
    return {
        "isNotAllocate": not group.allocated,
        "sessionKey": group.subscription.session_key,
        "isSelectBig": group.subscription.select_big,
        "reqSourceCount": group.subscription.source_count,
        "curSourceCount": len(group.members),
        "rebalanceCheckTime": 0,
    }


def _control_form(control: GroupControl) -> Answer:
    rules = rules_form(control.flow_rules)
    return {
        "groupName": control.group,
        "resCheckEnable": control.check_resources,
        "alwdBrokerClientRate": control.broker_rate_max,
        "qryPriorityId": control.priority,
        "flowCtrlEnable": control.flow_enabled,
        "flowCtrlRuleCount": len(rules),
        "flowCtrlInfo": rules,
        **stamp_form(control.stamp),
    }


def _rules_form(control: GroupControl) -> Answer:
    rules = rules_form(control.flow_rules)
    return {
        "groupName": control.group,
        "statusId": int(control.flow_enabled),
        "qryPriorityId": control.priority,
        "ruleCnt": len(rules),
        "flowCtrlInfo": rules,
        **stamp_form(control.stamp),
    }
