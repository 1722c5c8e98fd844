"""What the master's methods over HTTP have in common: who changes what, and how records look."""

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
from coherer._server.node.admin_params import Answer, Json, ParamError, Params
from coherer._server.tubemq.master.master import Master
from coherer._server.tubemq.master.state import MasterState
from coherer._wire.tubemq.flow import FlowRules
from coherer.errors import ProtocolError

MIB = 1024 * 1024
_RECORDS_MAX = 100
_USER_CHARS_MAX = 64
_TIME = "%Y%m%d%H%M%S"

_PROPS = dict(zip(TopicProps.__struct_encode_fields__, TopicProps.__struct_fields__, strict=True))
"""Name over HTTP → our name."""


class Office:
    """Where the methods work: on a master."""

    def __init__(self, master: Master) -> None:
        self.master = master

    # A standby that becomes active gets new tables: they are looked up at every call.

    @property
    def state(self) -> MasterState:
        """What the master's desks share."""
        return self.master.state

    @property
    def catalog(self) -> Catalog:
        """What survives."""
        return self.master.state.catalog

    @property
    def broker_registry(self) -> BrokerRegistry:
        """The brokers that are there."""
        return self.master.state.broker_registry

    def settle(self) -> None:
        """Save what has changed, and tell whom it concerns.

        Raises:
            StoreError: it counts, but could not be saved.
        """
        self.state.settle()


# -- who changes something


def adding(office: Office, params: Params) -> Change:
    """Who adds something.

    Raises:
        ParamError: it does not say who it is.
    """
    return _change(office, params, "createUser")


def updating(office: Office, params: Params) -> Change:
    """Who changes something.

    Raises:
        ParamError: it does not say who it is.
    """
    return _change(office, params, "modifyUser")


def _change(office: Office, params: Params, who: str) -> Change:
    office.state.require_active("HTTP")
    version = params.number("dataVersionId")
    return Change(
        user=params.required(who)[:_USER_CHARS_MAX],
        now_ms=office.state.wall_ms(),
        data_version=UNDEFINED if version is None else version,
    )


def outcomes(
    items: Iterable[Mapping[str, Json]], act: Callable[[Mapping[str, Json]], object]
) -> Answer:
    """Does something to every item, and tells what became of each.

    Args:
        items: what names each in the answer.
        act: does it; a `CatalogError` becomes that item's outcome.
    """
    data: list[Json] = []
    for item in items:
        outcome: Answer = {**item, "success": True, "errCode": 200, "errInfo": "Ok!"}
        try:
            act(item)
        except CatalogError as error:
            outcome |= {"success": False, "errCode": error.code, "errInfo": error.text}
        data.append(outcome)
    return {"result": True, "errCode": 0, "errMsg": "OK", "data": data, "count": len(data)}


Step: TypeAlias = "tuple[Answer, Callable[[], object]]"
"""What names a record in the answer, and what is done with it."""

Plan: TypeAlias = "Callable[[Params], Iterable[Step]]"
"""Reads parameters, and says what is to be done; nothing is done while it reads."""


def carry_out(office: Office, steps: Iterable[Step]) -> Answer:
    """Do what was planned, save it, and tell what became of each record.

    Raises:
        StoreError: it counts, but could not be saved.
    """
    todo = list(steps)
    acts = iter([act for _, act in todo])
    answer = outcomes([item for item, _ in todo], lambda _: next(acts)())
    office.settle()
    return answer


def batch(office: Office, params: Params, name: str, plan: Plan) -> Answer:
    """Do for every item of a JSON array what a method does for its parameters.

    All items are read before anything is done. Of several items for one record the last counts.

    Args:
        office: where.
        params: of the call.
        name: the parameter with the array.
        plan: what one item means.

    Raises:
        ParamError: an item cannot be; nothing was done then.
        StoreError: it counts, but could not be saved.
    """
    steps: dict[bytes, Step] = {}
    for record in params.records(name):
        for item, act in plan(record):
            steps[msgspec.json.encode(item)] = item, act
    if len(steps) > _RECORDS_MAX:
        raise ParamError(f"{len(steps)} records; {_RECORDS_MAX} are allowed in one call")
    return carry_out(office, steps.values())


def deployed(office: Office, params: Params) -> list[str]:
    """The topics that a caller names; all must be on some broker.

    Raises:
        ParamError: none is named, or one is not there.
    """
    params.required("topicName")
    topics = params.words("topicName")
    for topic in topics:
        if topic not in office.catalog.topics:
            raise ParamError(f"topicName value {topic} is not configure, please configure first!")
    return topics


def rights(office: Office, params: Params) -> list[ConsumeControl]:
    """What groups may do with topics, of those that a caller names."""
    groups, topics = set(params.words("groupName")), set(params.words("topicName"))
    return [
        control
        for control in office.catalog.consume_controls.values()
        if (not groups or control.group in groups) and (not topics or control.topic in topics)
    ]


def listed(params: Params, *names: str) -> list[list[str]]:
    """Lists that must not be empty, and whose combinations are not too many.

    Raises:
        ParamError: one is empty, or they are too many.
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


def ids(params: Params) -> list[int]:
    """The ids of brokers; there must be one.

    Raises:
        ParamError: there is none, or one is no number.
    """
    params.required("brokerId")
    return params.numbers("brokerId")


def unchanged(text: str) -> CatalogError:
    """The outcome of an order that finds everything as it should be."""
    return CatalogError(OpCode.UNCHANGED, text)


# -- properties of topics


def props_changes(params: Params) -> dict[str, object]:
    """The properties of topics that a caller names, by our names.

    Raises:
        ParamError: a value is of the wrong kind.
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
    """The properties of a topic as they are shown."""
    shown: Answer = msgspec.to_builtins(props)
    return {**shown, "dataStoreType": UNDEFINED, "dataPath": ""}


def megabytes(count: int) -> int:
    """Bytes of a limit that is given in megabytes.

    Raises:
        ParamError: it is not within 1..20.
    """
    if not 1 <= count <= 20:
        raise ParamError("illegal value for maxMsgSizeInMB, value must be in 1..20")
    return count * MIB


# -- flow control


def flow_changes(params: Params) -> dict[str, object]:
    """What a caller says about flow control and priority, of a cluster or a group.

    Raises:
        ParamError: rules or numbers that cannot be.
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
    """Who made a record and when, as it is shown."""
    return {
        "dataVersionId": stamp.data_version,
        "serialId": stamp.serial,
        "createUser": stamp.created_by,
        "createDate": _time(stamp.created_ms),
        "modifyUser": stamp.modified_by,
        "modifyDate": _time(stamp.modified_ms),
    }


def old_stamp_form(stamp: Stamp) -> Answer:
    """The same in the old forms of methods, which have no serial number."""
    form = stamp_form(stamp)
    del form["serialId"]
    return form


def filters_text(filters: Iterable[str]) -> str:
    """Filter words as they are shown; nothing for none.

    >>> filters_text(["b", "a"]), filters_text([])
    (',a,b,', '')
    """
    words = sorted(filters)
    return f",{','.join(words)}," if words else ""


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone().strftime(_TIME) if ms else ""


def rules_form(rules: str) -> list[Json]:
    """Flow rules as they are shown."""
    shown: list[Json] = msgspec.json.decode(rules or "[]")
    return shown


def right_form(control: ConsumeControl) -> Answer:
    """What a group may do with a topic, as it is shown."""
    return {
        "topicName": control.topic,
        "groupName": control.group,
        "consumeEnable": control.enabled,
        "disableCsmRsn": control.reason,
        "filterEnable": control.filtered,
        "filterConds": filters_text(control.filters),
        **stamp_form(control.stamp),
    }


def deployment_form(office: Office, deployment: Deployment) -> Answer:
    """A topic on a broker as it is shown."""
    broker = office.catalog.brokers.get(deployment.broker)
    control = office.catalog.topic_controls.get(deployment.topic)
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
