"""The master's legacy HTTP methods for consumer groups (docs/protocol/tubemq.md, section 10.4).

Lists of authorized groups, black lists, filters and group settings are older than the records in
`admin_groups`. As in Java, their methods are kept, because tools still call them, and work on the
current records. A request that names only a topic applies to all of its groups; Java looks for
groups with the name of the topic there, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from coherer._rules.tubemq.records import CatalogError, Change, ConsumeControl, OpCode
from coherer._server.http.app import Method
from coherer._server.http.params import Answer, ParamError, Params, found
from coherer._server.tubemq.master.admin_answers import filters_text, old_stamp_form
from coherer._server.tubemq.master.admin_changes import (
    AdminContext,
    Step,
    create_change,
    execute,
    execute_batch,
    update_change,
)
from coherer._server.tubemq.master.admin_parameters import (
    consume_controls,
    deployed_topics,
    group_controls,
    required_lists,
)

GROUPS: Final = "groupNameJsonSet"
FILTERS: Final = "filterCondJsonSet"
FILTERS_ON: Final = 2
"""The `condStatus` of a group that must use filters; 0 and 1 mean that it need not."""

_ALLOW: Final[dict[str, object]] = {"enabled": True, "reason": ""}
_FORBID: Final[dict[str, object]] = {"enabled": False, "reason": "not authorized"}
_BLACK: Final[dict[str, object]] = {"enabled": False, "reason": "black list"}
_UNFILTER: Final[dict[str, object]] = {"filtered": False, "filters": frozenset[str]()}


class LegacyGroupAdmin:
    """The legacy methods for rights and settings of groups."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def methods(self) -> dict[str, Method]:
        """The methods by name; `bath` is Java's spelling."""
        switches = {
            "admin_add_authorized_consumergroup_info": self._adder(_ALLOW),
            "admin_add_black_consumergroup_info": self._adder(_BLACK),
            "admin_delete_allowed_consumer_group_info": self._remover(_is_allowed, _FORBID),
            "admin_delete_black_consumergroup_info": self._remover(_is_black, _ALLOW),
            "admin_del_group_filtercond_info": self._remover(_is_filtered, _UNFILTER),
            "admin_bath_add_authorized_consumergroup_info": self._batch_adder(_ALLOW),
            "admin_bath_add_black_consumergroup_info": self._batch_adder(_BLACK),
            "admin_batch_del_authorized_consumergroup_info": self._batch_remover(
                _is_allowed, _FORBID
            ),
            "admin_batch_delete_black_consumergroup_info": self._batch_remover(_is_black, _ALLOW),
            "admin_add_group_filtercond_info": self.add_filter,
            "admin_mod_group_filtercond_info": self.change_filter,
            "admin_bath_add_group_filtercond_info": self.add_filters,
            "admin_bath_mod_group_filtercond_info": self.change_filters,
            "admin_add_consume_group_setting": self.add_setting,
            "admin_bath_add_consume_group_setting": self.add_settings,
            "admin_upd_consume_group_setting": self.change_setting,
            "admin_del_consume_group_setting": self.remove_setting,
        }
        queries = {
            "admin_query_allowed_consumer_group_info": self.allowed,
            "admin_query_black_consumer_group_info": self.black,
            "admin_query_group_filtercond_info": self.filters,
            "admin_query_consume_group_setting": self.settings,
        }
        return {
            **{name: Method(call) for name, call in queries.items()},
            **{name: Method(call, changes=True) for name, call in switches.items()},
        }

    # -- queries

    def allowed(self, params: Params) -> Answer:
        return found(
            {
                "topicName": record.topic,
                "groupName": record.group,
                **old_stamp_form(record.stamp),
            }
            for record in consume_controls(self._context.catalog, params)
            if record.enabled
        )

    def black(self, params: Params) -> Answer:
        return found(
            {
                "groupName": record.group,
                "topicName": record.topic,
                "reason": record.reason,
                **old_stamp_form(record.stamp),
            }
            for record in consume_controls(self._context.catalog, params)
            if not record.enabled
        )

    def filters(self, params: Params) -> Answer:
        wanted, words = _filter_switch(params), set(params.words("filterConds"))
        return found(
            {
                "topicName": record.topic,
                "groupName": record.group,
                "condStatus": FILTERS_ON if record.filtered else 0,
                "filterConds": filters_text(record.filters),
                **old_stamp_form(record.stamp),
            }
            for record in consume_controls(self._context.catalog, params)
            if (wanted is None or record.filtered == wanted) and words <= record.filters
        )

    def settings(self, params: Params) -> Answer:
        rate = params.number("allowedBClientRate", least=0)
        wanted: dict[str, object] = {} if rate is None else {"broker_rate_max": rate}
        return found(
            {
                "groupName": control.group,
                "enableBind": 1,
                "allowedBClientRate": control.broker_rate_max,
                "attributes": "",
                "lastBindUsedDate": "-",
                **old_stamp_form(control.stamp),
            }
            for control in group_controls(self._context.catalog, params, wanted)
        )

    # -- authorized and black-listed groups

    def _adder(self, changes: dict[str, object]) -> Callable[[Params], Answer]:
        return lambda params: self._carry_out(self._add_steps(params, changes))

    def _batch_adder(self, changes: dict[str, object]) -> Callable[[Params], Answer]:
        plan = partial(self._add_steps, changes=changes)
        return lambda params: self._batch(params, GROUPS, plan)

    def _add_steps(self, params: Params, changes: dict[str, object]) -> list[Step]:
        change = create_change(self._context, params)
        (groups,) = required_lists(params, "groupName")
        return [
            _step(group, topic, partial(self._switch, topic, group, changes, change))
            for group in groups
            for topic in deployed_topics(self._context.catalog, params)
        ]

    def _switch(self, topic: str, group: str, changes: dict[str, object], change: Change) -> None:
        """Change or create a record, unless it already has this value."""
        record = self._record(topic, group)
        if record is None or record.enabled != changes["enabled"]:
            self._context.catalog.control_consumption(topic, group, changes, change)

    def _remover(
        self, has: Callable[[ConsumeControl], bool], changes: dict[str, object]
    ) -> Callable[[Params], Answer]:
        return lambda params: self._carry_out(self._remove_steps(params, has, changes))

    def _batch_remover(
        self, has: Callable[[ConsumeControl], bool], changes: dict[str, object]
    ) -> Callable[[Params], Answer]:
        def plan(params: Params) -> list[Step]:
            deployed_topics(self._context.catalog, params)
            params.required("groupName")
            return self._remove_steps(params, has, changes)

        return lambda params: self._batch(params, GROUPS, plan)

    def _remove_steps(
        self,
        params: Params,
        has: Callable[[ConsumeControl], bool],
        changes: dict[str, object],
    ) -> list[Step]:
        change = update_change(self._context, params)
        (topics,) = required_lists(params, "topicName")
        groups = params.words("groupName")
        if groups:
            return [
                _step(group, topic, partial(self._unset, topic, [group], has, changes, change))
                for group in groups
                for topic in topics
            ]
        return [
            _step("", topic, partial(self._unset, topic, None, has, changes, change))
            for topic in topics
        ]

    def _unset(
        self,
        topic: str,
        groups: list[str] | None,
        has: Callable[[ConsumeControl], bool],
        changes: dict[str, object],
        change: Change,
    ) -> None:
        """Change those records of a topic (and of these groups, if given) for which `has` holds."""
        catalog = self._context.catalog
        for record in list(catalog.consume_controls.values()):
            wanted = groups is None or record.group in groups
            if record.topic == topic and wanted and has(record):
                catalog.control_consumption(topic, record.group, changes, change)

    # -- filters

    def add_filter(self, params: Params) -> Answer:
        return self._carry_out(self._filter_steps(params, new=True))

    def change_filter(self, params: Params) -> Answer:
        return self._carry_out(self._filter_steps(params, new=False))

    def add_filters(self, params: Params) -> Answer:
        return self._batch_filters(params, new=True)

    def change_filters(self, params: Params) -> Answer:
        return self._batch_filters(params, new=False)

    def _batch_filters(self, params: Params, *, new: bool) -> Answer:
        # Java reads status and words from the call only; here items may override them.
        shared = {name: params[name] for name in ("condStatus", "filterConds") if name in params}

        def plan(record: Params) -> list[Step]:
            return self._filter_steps(Params({**shared, **record}), new=new)

        return self._batch(params, FILTERS, plan)

    def _filter_steps(self, params: Params, *, new: bool) -> list[Step]:
        change = (create_change if new else update_change)(self._context, params)
        (groups,) = required_lists(params, "groupName")
        changes: dict[str, object] = {}
        switch = _filter_switch(params)
        if switch is not None or new:
            changes["filtered"] = bool(switch)
        if "filterConds" in params or new:
            changes["filters"] = frozenset(params.words("filterConds"))

        def apply(topic: str, group: str) -> None:
            if not new and self._record(topic, group) is None:
                raise _missing(f"There are no settings for group {group} and topic {topic}.")
            self._context.catalog.control_consumption(topic, group, changes, change)

        return [
            _step(group, topic, partial(apply, topic, group))
            for group in groups
            for topic in deployed_topics(self._context.catalog, params)
        ]

    # -- settings

    def add_setting(self, params: Params) -> Answer:
        return self._carry_out(self._setting_steps(params, new=True))

    def add_settings(self, params: Params) -> Answer:
        return self._batch(params, GROUPS, partial(self._setting_steps, new=True))

    def change_setting(self, params: Params) -> Answer:
        return self._carry_out(self._setting_steps(params, new=False))

    def remove_setting(self, params: Params) -> Answer:
        """admin_del_consume_group_setting: stop checking the resources of the group."""
        change = update_change(self._context, params)
        (names,) = required_lists(params, "groupName")

        def apply(name: str) -> None:
            control = self._context.catalog.group_controls.get(name)
            if control is None:
                raise _missing(f"There are no settings for group {name}.")
            if not control.check_resources and not control.broker_rate_max:
                raise CatalogError(
                    OpCode.UNCHANGED, f"The request changes nothing for group {name}."
                )
            cleared = {"check_resources": False, "broker_rate_max": 0}
            self._context.catalog.control_group(name, cleared, change)

        return self._carry_out([({"groupName": name}, partial(apply, name)) for name in names])

    def _setting_steps(self, params: Params, *, new: bool) -> list[Step]:
        change = (create_change if new else update_change)(self._context, params)
        (names,) = required_lists(params, "groupName")
        changes: dict[str, object] = {}
        check = params.flag("resCheckEnable")
        rate = params.number("allowedBClientRate", least=0)
        if check is not None or new:
            changes["check_resources"] = bool(check)
        if rate is not None or new:
            changes["broker_rate_max"] = rate or 0

        def apply(name: str) -> None:
            if not new and not self._context.catalog.knows_group(name):
                raise _missing(f"There are no settings for group {name}.")
            self._context.catalog.control_group(name, changes, change)

        return [({"groupName": name}, partial(apply, name)) for name in names]

    def _batch(self, params: Params, name: str, plan: Callable[[Params], list[Step]]) -> Answer:
        return _without_topics(execute_batch(self._context, params, name, plan))

    def _carry_out(self, steps: list[Step]) -> Answer:
        return _without_topics(execute(self._context, steps))

    def _record(self, topic: str, group: str) -> ConsumeControl | None:
        return self._context.catalog.consume_controls.get((topic, group))


def _without_topics(answer: Answer) -> Answer:
    """The legacy methods name only the group."""
    data = answer["data"]
    if isinstance(data, list):
        for item in data:
            if isinstance(item, dict):
                item.pop("topicName", None)
    return answer


def _step(group: str, topic: str, apply: Callable[[], object]) -> Step:
    return {"groupName": group, "topicName": topic}, apply


def _filter_switch(params: Params) -> bool | None:
    status = params.number("condStatus")
    if status is not None and not 0 <= status <= FILTERS_ON:
        raise ParamError(f"illegal value for condStatus, value must be in 0..{FILTERS_ON}")
    return None if status is None else status == FILTERS_ON


def _missing(text: str) -> CatalogError:
    return CatalogError(OpCode.NOT_EXIST, text)


def _is_allowed(record: ConsumeControl) -> bool:
    return record.enabled


def _is_black(record: ConsumeControl) -> bool:
    return not record.enabled


def _is_filtered(record: ConsumeControl) -> bool:
    return record.filtered
