"""The old forms of the master's methods about consumer groups (10.4).

Lists of groups that may read a topic, black lists, filters and group settings are older than the
records of today (`admin_groups`). Java keeps their methods, because tools still call them, and
works on the records of today; so do we. What names a topic alone means all of its groups; Java
looks for groups with the topic's name there, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from coherer._rules.tubemq.records import CatalogError, Change, ConsumeControl, OpCode
from coherer._server.node.admin import Method
from coherer._server.node.admin_params import Answer, ParamError, Params, found
from coherer._server.tubemq.master.admin_forms import (
    Office,
    Step,
    adding,
    batch,
    carry_out,
    deployed,
    filters_text,
    listed,
    old_stamp_form,
    rights,
    updating,
)

GROUPS: Final = "groupNameJsonSet"
FILTERS: Final = "filterCondJsonSet"
FILTERS_ON: Final = 2
"""`condStatus` of a group that must filter; 0 and 1 are for one that need not."""

_ALLOW: Final[dict[str, object]] = {"enabled": True, "reason": ""}
_FORBID: Final[dict[str, object]] = {"enabled": False, "reason": "not authorized"}
_BLACK: Final[dict[str, object]] = {"enabled": False, "reason": "black list"}
_UNFILTER: Final[dict[str, object]] = {"filtered": False, "filters": frozenset[str]()}


class OldGroupAdmin:
    """The old forms."""

    def __init__(self, office: Office) -> None:
        self._office = office

    def methods(self) -> dict[str, Method]:
        """By name; `bath` is how Java spells it."""
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
        """admin_query_allowed_consumer_group_info."""
        return found(
            {
                "topicName": record.topic,
                "groupName": record.group,
                **old_stamp_form(record.stamp),
            }
            for record in rights(self._office, params)
            if record.enabled
        )

    def black(self, params: Params) -> Answer:
        """admin_query_black_consumer_group_info."""
        return found(
            {
                "groupName": record.group,
                "topicName": record.topic,
                "reason": record.reason,
                **old_stamp_form(record.stamp),
            }
            for record in rights(self._office, params)
            if not record.enabled
        )

    def filters(self, params: Params) -> Answer:
        """admin_query_group_filtercond_info."""
        wanted, words = _filter_switch(params), set(params.words("filterConds"))
        return found(
            {
                "topicName": record.topic,
                "groupName": record.group,
                "condStatus": FILTERS_ON if record.filtered else 0,
                "filterConds": filters_text(record.filters),
                **old_stamp_form(record.stamp),
            }
            for record in rights(self._office, params)
            if (wanted is None or record.filtered == wanted) and words <= record.filters
        )

    def settings(self, params: Params) -> Answer:
        """admin_query_consume_group_setting."""
        names, rate = set(params.words("groupName")), params.number("allowedBClientRate")
        controls = self._office.catalog.group_controls
        return found(
            {
                "groupName": name,
                "enableBind": 1,
                "allowedBClientRate": control.broker_rate_max,
                "attributes": "",
                "lastBindUsedDate": "-",
                **old_stamp_form(control.stamp),
            }
            for name, control in sorted(controls.items())
            if (not names or name in names) and (rate is None or rate == control.broker_rate_max)
        )

    # -- who may read, and who may not

    def _adder(self, changes: dict[str, object]) -> Callable[[Params], Answer]:
        return lambda params: self._carry_out(self._adding(params, changes))

    def _batch_adder(self, changes: dict[str, object]) -> Callable[[Params], Answer]:
        plan = partial(self._adding, changes=changes)
        return lambda params: self._batch(params, GROUPS, plan)

    def _adding(self, params: Params, changes: dict[str, object]) -> list[Step]:
        change = adding(self._office, params)
        (groups,) = listed(params, "groupName")
        return [
            _step(group, topic, partial(self._switch, topic, group, changes, change))
            for group in groups
            for topic in deployed(self._office, params)
        ]

    def _switch(self, topic: str, group: str, changes: dict[str, object], change: Change) -> None:
        """Change a record, or make one, unless it says so already."""
        record = self._record(topic, group)
        if record is None or record.enabled != changes["enabled"]:
            self._office.catalog.control_consumption(topic, group, changes, change)

    def _remover(
        self, has: Callable[[ConsumeControl], bool], changes: dict[str, object]
    ) -> Callable[[Params], Answer]:
        return lambda params: self._carry_out(self._removing(params, has, changes))

    def _batch_remover(
        self, has: Callable[[ConsumeControl], bool], changes: dict[str, object]
    ) -> Callable[[Params], Answer]:
        def plan(params: Params) -> list[Step]:
            deployed(self._office, params)
            params.required("groupName")
            return self._removing(params, has, changes)

        return lambda params: self._batch(params, GROUPS, plan)

    def _removing(
        self,
        params: Params,
        has: Callable[[ConsumeControl], bool],
        changes: dict[str, object],
    ) -> list[Step]:
        change = updating(self._office, params)
        (topics,) = listed(params, "topicName")
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
        """Change the records of a topic's groups, or of all, that have something."""
        catalog = self._office.catalog
        for record in list(catalog.consume_controls.values()):
            wanted = groups is None or record.group in groups
            if record.topic == topic and wanted and has(record):
                catalog.control_consumption(topic, record.group, changes, change)

    # -- filters

    def add_filter(self, params: Params) -> Answer:
        """admin_add_group_filtercond_info."""
        return self._carry_out(self._filtering(params, new=True))

    def change_filter(self, params: Params) -> Answer:
        """admin_mod_group_filtercond_info."""
        return self._carry_out(self._filtering(params, new=False))

    def add_filters(self, params: Params) -> Answer:
        """admin_bath_add_group_filtercond_info."""
        return self._batch_filters(params, new=True)

    def change_filters(self, params: Params) -> Answer:
        """admin_bath_mod_group_filtercond_info."""
        return self._batch_filters(params, new=False)

    def _batch_filters(self, params: Params, *, new: bool) -> Answer:
        # Java looks for status and words in the call, not in the items; here items may say it too.
        said = {name: params[name] for name in ("condStatus", "filterConds") if name in params}

        def plan(record: Params) -> list[Step]:
            return self._filtering(Params({**said, **record}), new=new)

        return self._batch(params, FILTERS, plan)

    def _filtering(self, params: Params, *, new: bool) -> list[Step]:
        change = (adding if new else updating)(self._office, params)
        (groups,) = listed(params, "groupName")
        changes: dict[str, object] = {}
        switch = _filter_switch(params)
        if switch is not None or new:
            changes["filtered"] = bool(switch)
        if "filterConds" in params or new:
            changes["filters"] = frozenset(params.words("filterConds"))

        def act(topic: str, group: str) -> None:
            if not new and self._record(topic, group) is None:
                raise _missing(f"Nothing is set for group {group} and topic {topic}.")
            self._office.catalog.control_consumption(topic, group, changes, change)

        return [
            _step(group, topic, partial(act, topic, group))
            for group in groups
            for topic in deployed(self._office, params)
        ]

    # -- settings

    def add_setting(self, params: Params) -> Answer:
        """admin_add_consume_group_setting."""
        return self._carry_out(self._setting(params, new=True))

    def add_settings(self, params: Params) -> Answer:
        """admin_bath_add_consume_group_setting."""
        return self._batch(params, GROUPS, partial(self._setting, new=True))

    def change_setting(self, params: Params) -> Answer:
        """admin_upd_consume_group_setting."""
        return self._carry_out(self._setting(params, new=False))

    def remove_setting(self, params: Params) -> Answer:
        """admin_del_consume_group_setting: the group's resources are not looked at any more."""
        change = updating(self._office, params)
        (names,) = listed(params, "groupName")

        def act(name: str) -> None:
            control = self._office.catalog.group_controls.get(name)
            if control is None:
                raise _missing(f"Nothing is set for group {name}.")
            if not control.check_resources and not control.broker_rate_max:
                raise CatalogError(OpCode.UNCHANGED, f"Nothing is to be changed for {name}.")
            cleared = {"check_resources": False, "broker_rate_max": 0}
            self._office.catalog.control_group(name, cleared, change)

        return self._carry_out([({"groupName": name}, partial(act, name)) for name in names])

    def _setting(self, params: Params, *, new: bool) -> list[Step]:
        change = (adding if new else updating)(self._office, params)
        (names,) = listed(params, "groupName")
        changes: dict[str, object] = {}
        check, rate = params.flag("resCheckEnable"), params.number("allowedBClientRate")
        if check is not None or new:
            changes["check_resources"] = bool(check)
        if rate is not None or new:
            changes["broker_rate_max"] = max(rate or 0, 0)

        def act(name: str) -> None:
            if not new and name not in self._office.catalog.group_controls:
                raise _missing(f"Nothing is set for group {name}.")
            self._office.catalog.control_group(name, changes, change)

        return [({"groupName": name}, partial(act, name)) for name in names]

    # -- inside

    def _batch(self, params: Params, name: str, plan: Callable[[Params], list[Step]]) -> Answer:
        return _without_topics(batch(self._office, params, name, plan))

    def _carry_out(self, steps: list[Step]) -> Answer:
        return _without_topics(carry_out(self._office, steps))

    def _record(self, topic: str, group: str) -> ConsumeControl | None:
        return self._office.catalog.consume_controls.get((topic, group))


def _without_topics(answer: Answer) -> Answer:
    """The old forms name the group alone."""
    data = answer["data"]
    if isinstance(data, list):
        for item in data:
            if isinstance(item, dict):
                item.pop("topicName", None)
    return answer


def _step(group: str, topic: str, act: Callable[[], object]) -> Step:
    return {"groupName": group, "topicName": topic}, act


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
