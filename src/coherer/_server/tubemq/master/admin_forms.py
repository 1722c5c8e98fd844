"""Shared parts of the master's HTTP methods: parameters, batches, and the forms of records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TypeAlias

import msgspec

from coherer._rules.tubemq.catalog import Catalog
from coherer._rules.tubemq.records import (
    UNDEFINED,
    CatalogError,
    Change,
    ConsumeControl,
    Deployment,
    OpCode,
    Stamp,
    TopicProps,
)
from coherer._rules.tubemq.registry import BrokerRegistry
from coherer._server.http.params import Answer, Json, ParamError, Params
from coherer._server.tubemq.master.master import Master
from coherer._server.tubemq.master.state import MasterState
from coherer._wire.tubemq.flow import FlowRules
from coherer.errors import ProtocolError

MIB = 1024 * 1024
_RECORDS_MAX = 100
_USER_CHARS_MAX = 64
_TIME = "%Y%m%d%H%M%S"

_PROPS = dict(zip(TopicProps.__struct_encode_fields__, TopicProps.__struct_fields__, strict=True))
"""The names of properties over HTTP, and the field names of `TopicProps`."""


class AdminContext:
    """Access to the current state of a master.

    A standby that becomes active gets new tables, so they are looked up at every call.
    """

    def __init__(self, master: Master) -> None:
        self.master = master

    @property
    def state(self) -> MasterState:
        """The state of the master."""
        return self.master.state

    @property
    def catalog(self) -> Catalog:
        """The catalog of the master."""
        return self.master.state.catalog

    @property
    def broker_registry(self) -> BrokerRegistry:
        """The registered brokers."""
        return self.master.state.broker_registry

    def commit_changes(self) -> None:
        """Save changes and put them into effect.

        Raises:
            StoreError: the changes are in effect, but could not be saved.
        """
        self.state.commit_changes()


# -- changes


def create_change(context: AdminContext, params: Params) -> Change:
    """The author of a new record, from `createUser`.

    Raises:
        ParamError: the parameter is missing.
    """
    return _change(context, params, "createUser")


def update_change(context: AdminContext, params: Params) -> Change:
    """The author of a change, from `modifyUser`.

    Raises:
        ParamError: the parameter is missing.
    """
    return _change(context, params, "modifyUser")


def _change(context: AdminContext, params: Params, who: str) -> Change:
    context.state.require_active("HTTP")
    version = params.number("dataVersionId")
    return Change(
        user=params.required(who)[:_USER_CHARS_MAX],
        now_ms=context.state.wall_ms(),
        data_version=UNDEFINED if version is None else version,
    )


def outcomes(
    items: Iterable[Mapping[str, Json]], apply: Callable[[Mapping[str, Json]], object]
) -> Answer:
    """Apply a change to every item, and report the outcome of each.

    Args:
        items: the members that name each item in the answer.
        apply: applies the change; a `CatalogError` becomes the outcome of the item.
    """
    data: list[Json] = []
    for item in items:
        outcome: Answer = {**item, "success": True, "errCode": 200, "errInfo": "Ok!"}
        try:
            apply(item)
        except CatalogError as error:
            outcome |= {"success": False, "errCode": error.code, "errInfo": error.text}
        data.append(outcome)
    return {"result": True, "errCode": 0, "errMsg": "OK", "data": data, "count": len(data)}


Step: TypeAlias = "tuple[Answer, Callable[[], object]]"
"""The members that name a record in the answer, and the change to apply to it."""

Plan: TypeAlias = "Callable[[Params], Iterable[Step]]"
"""Turns parameters into steps, without applying them."""


def execute(context: AdminContext, steps: Iterable[Step]) -> Answer:
    """Apply the steps, save the changes, and report the outcome of each step.

    Raises:
        StoreError: the changes are in effect, but could not be saved.
    """
    pending = list(steps)
    changes = iter([apply for _, apply in pending])
    answer = outcomes([item for item, _ in pending], lambda _: next(changes)())
    context.commit_changes()
    return answer


def execute_batch(context: AdminContext, params: Params, name: str, plan: Plan) -> Answer:
    """Apply a method to every item of a JSON array of parameters.

    All items are checked before any change is applied. If several items name one record, the last
    one is used.

    Args:
        plan: turns one item into steps.

    Raises:
        ParamError: an item is not valid; nothing was changed.
        StoreError: the changes are in effect, but could not be saved.
    """
    steps: dict[bytes, Step] = {}
    for record in params.records(name):
        for item, apply in plan(record):
            steps[msgspec.json.encode(item)] = item, apply
    if len(steps) > _RECORDS_MAX:
        raise ParamError(f"{len(steps)} records; {_RECORDS_MAX} are allowed in one call")
    return execute(context, steps.values())


def deployed_topics(context: AdminContext, params: Params) -> list[str]:
    """The topics of `topicName`, all of which must be deployed on some broker.

    Raises:
        ParamError: no topic is given, or one is not deployed.
    """
    params.required("topicName")
    topics = params.words("topicName")
    for topic in topics:
        if topic not in context.catalog.topics:
            raise ParamError(f"topicName value {topic} is not configure, please configure first!")
    return topics


def consume_controls(context: AdminContext, params: Params) -> list[ConsumeControl]:
    """The rights of groups on topics, restricted to the groups and topics in the parameters."""
    groups, topics = set(params.words("groupName")), set(params.words("topicName"))
    return [
        control
        for control in context.catalog.consume_controls.values()
        if (not groups or control.group in groups) and (not topics or control.topic in topics)
    ]


def required_lists(params: Params, *names: str) -> list[list[str]]:
    """Parameters that are non-empty lists, with a limited number of combinations.

    Raises:
        ParamError: a list is empty, or there are too many combinations.
    """
    lists: list[list[str]] = []
    count = 1
    for name in names:
        params.required(name)
        lists.append(params.words(name))
        count *= max(len(lists[-1]), 1)
    if count > _RECORDS_MAX:
        raise ParamError(f"{count} records; {_RECORDS_MAX} are allowed in one call")
    return lists


def broker_ids(params: Params) -> list[int]:
    """The ids of `brokerId`, at least one.

    Raises:
        ParamError: no id is given, or one is not a number.
    """
    params.required("brokerId")
    return params.numbers("brokerId")


def unchanged_error(text: str) -> CatalogError:
    """The outcome of a change that has no effect."""
    return CatalogError(OpCode.UNCHANGED, text)


# -- properties of topics


def props_changes(params: Params) -> dict[str, object]:
    """The properties of topics in the parameters, by the field names of `TopicProps`.

    Raises:
        ParamError: a value has the wrong type.
    """
    changes: dict[str, object] = {}
    usual = TopicProps()
    for name, field in _PROPS.items():
        if not params.get(name, "").strip():
            continue
        kind: object = getattr(usual, field)
        if isinstance(kind, bool):
            changes[field] = params.flag(name)
        elif isinstance(kind, int):
            changes[field] = params.number(name)
        else:
            changes[field] = params[name].strip()
    return changes


def props_form(props: TopicProps) -> Answer:
    """The form of a topic's properties."""
    shown: Answer = msgspec.to_builtins(props)
    return {**shown, "dataStoreType": UNDEFINED, "dataPath": ""}


def megabytes(count: int) -> int:
    """Convert a limit in megabytes to bytes.

    Raises:
        ParamError: the limit is not within 1..20.
    """
    if not 1 <= count <= 20:
        raise ParamError("illegal value for maxMsgSizeInMB, value must be in 1..20")
    return count * MIB


# -- flow control


def flow_changes(params: Params) -> dict[str, object]:
    """The flow control and priority in the parameters, for a cluster or a group.

    Raises:
        ParamError: rules or numbers are not valid.
    """
    changes: dict[str, object] = {}
    priority = params.number("qryPriorityId")
    if priority is not None:
        if not 101 <= priority <= 303 or not set(str(priority)) <= {"0", "1", "2", "3"}:
            raise ParamError("illegal value for qryPriorityId, value must be in 101..303")
        changes["priority"] = priority
    enabled = params.flag("flowCtrlEnable")
    if enabled is not None:
        changes["flow_enabled"] = enabled
    rules = params.get("flowCtrlInfo", "").strip()
    if rules:
        try:
            FlowRules.parse(rules)
        except ProtocolError as error:
            raise ParamError(f"illegal value for flowCtrlInfo: {error.text}") from None
        changes["flow_rules"] = rules
    return changes


# -- records


def stamp_form(stamp: Stamp) -> Answer:
    """The form of a record's author and times."""
    return {
        "dataVersionId": stamp.data_version,
        "serialId": stamp.serial,
        "createUser": stamp.created_by,
        "createDate": _time(stamp.created_ms),
        "modifyUser": stamp.modified_by,
        "modifyDate": _time(stamp.modified_ms),
    }


def old_stamp_form(stamp: Stamp) -> Answer:
    """The same for the legacy methods, which have no serial number."""
    form = stamp_form(stamp)
    del form["serialId"]
    return form


def filters_text(filters: Iterable[str]) -> str:
    """The form of filter words; "" without filters.

    >>> filters_text(["b", "a"]), filters_text([])
    (',a,b,', '')
    """
    words = sorted(filters)
    return f",{','.join(words)}," if words else ""


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone().strftime(_TIME) if ms else ""


def rules_form(rules: str) -> list[Json]:
    """The form of flow rules."""
    shown: list[Json] = msgspec.json.decode(rules or "[]")
    return shown


def consume_control_form(control: ConsumeControl) -> Answer:
    """The form of a group's rights on a topic."""
    return {
        "topicName": control.topic,
        "groupName": control.group,
        "consumeEnable": control.enabled,
        "disableCsmRsn": control.reason,
        "filterEnable": control.filtered,
        "filterConds": filters_text(control.filters),
        **stamp_form(control.stamp),
    }


def deployment_form(context: AdminContext, deployment: Deployment) -> Answer:
    """The form of a topic on a broker."""
    broker = context.catalog.brokers.get(deployment.broker)
    control = context.catalog.topic_controls.get(deployment.topic)
    return {
        "topicName": deployment.topic,
        "brokerId": deployment.broker,
        "topicNameId": control.topic_id if control else UNDEFINED,
        "brokerIp": broker.host if broker else "",
        "brokerPort": broker.port if broker else UNDEFINED,
        "topicStatusId": int(deployment.status),
        **props_form(deployment.props),
        **stamp_form(deployment.stamp),
    }
