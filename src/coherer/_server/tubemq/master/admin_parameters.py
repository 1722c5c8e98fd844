"""Parameters of HTTP methods: the records that they name, and the values that they set."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from coherer._rules.tubemq.catalog import Catalog
from coherer._rules.tubemq.records import CatalogError, ConsumeControl, GroupControl, TopicProps
from coherer._server.http.params import ParamError, Params
from coherer._wire.tubemq.flow import FlowRules
from coherer.errors import ProtocolError

MIB = 1024 * 1024

RECORDS_MAX = 100
"""The maximum number of records that one call may change."""

_PROPS = dict(zip(TopicProps.__struct_encode_fields__, TopicProps.__struct_fields__, strict=True))
"""The names of properties over HTTP, and the field names of `TopicProps`."""


def deployed_topics(catalog: Catalog, params: Params) -> list[str]:
    """The topics of `topicName`, all of which must be deployed on some broker.

    Raises:
        ParamError: no topic is given, or one is not deployed.
    """
    params.required("topicName")
    topics = params.words("topicName")
    for topic in topics:
        if topic not in catalog.topics:
            raise ParamError(f"topicName value {topic} is not configure, please configure first!")
    return topics


def consume_controls(catalog: Catalog, params: Params) -> list[ConsumeControl]:
    """The rights of groups on topics, restricted to the groups and topics in the parameters."""
    groups, topics = set(params.words("groupName")), set(params.words("topicName"))
    return [
        control
        for control in catalog.consume_controls.values()
        if (not groups or control.group in groups) and (not topics or control.topic in topics)
    ]


def rights(catalog: Catalog, params: Params) -> list[ConsumeControl]:
    """The same, restricted to the values in the parameters, too."""
    wanted = _flags(params, {"enabled": "consumeEnable", "filtered": "filterEnable"})
    words = set(params.words("filterConds"))
    return [
        control
        for control in consume_controls(catalog, params)
        if has_values(control, wanted) and words <= control.filters
    ]


def group_controls(
    catalog: Catalog, params: Params, wanted: Mapping[str, object]
) -> list[GroupControl]:
    """The settings of groups, restricted to the groups in the parameters, and to these values."""
    names, controls = set(params.words("groupName")), catalog.group_controls
    return [
        controls[name]
        for name in sorted(controls)
        if (not names or name in names) and has_values(controls[name], wanted)
    ]


def wanted_settings(params: Params) -> dict[str, object]:
    """The values of group settings that a query asks for, by the field names of `GroupControl`.

    Raises:
        ParamError: a value has the wrong type, or is out of range.
    """
    wanted = _flags(params, {"check_resources": "resCheckEnable", "flow_enabled": "flowCtrlEnable"})
    return wanted | _priority(params)


def wanted_rules(params: Params) -> dict[str, object]:
    """The same for the legacy query of flow control rules.

    Raises:
        ParamError: as `wanted_settings`.
    """
    return rule_status(params) | _priority(params)


def rule_status(params: Params) -> dict[str, object]:
    """The switch of the legacy methods for flow control rules.

    Raises:
        ParamError: it is neither 0 nor 1.
    """
    status = params.number("statusId")
    if status not in (None, 0, 1):
        raise ParamError("illegal value for statusId, value must be 0 or 1")
    return {} if status is None else {"flow_enabled": status == 1}


def has_values(record: object, wanted: Mapping[str, object]) -> bool:
    """Whether a record has these values, by the names of its fields."""
    return all(getattr(record, field) == value for field, value in wanted.items())


def _flags(params: Params, names: Mapping[str, str]) -> dict[str, object]:
    given = ((field, params.flag(name)) for field, name in names.items())
    return {field: value for field, value in given if value is not None}


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
    if count > RECORDS_MAX:
        raise ParamError(f"{count} records; {RECORDS_MAX} are allowed in one call")
    return lists


def broker_ids(params: Params) -> list[int]:
    """The ids of `brokerId`, at least one.

    Raises:
        ParamError: no id is given, or one is not a number.
    """
    params.required("brokerId")
    return params.numbers("brokerId")


def props_changes(params: Params) -> dict[str, object]:
    """The properties of topics in the parameters, by the field names of `TopicProps`.

    Raises:
        ParamError: a value has the wrong type, or is out of range.
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
            changes[field] = _policy(params[name].strip())
    try:
        msgspec.structs.replace(usual, **changes).checked()
    except CatalogError as error:
        raise ParamError(error.text) from None
    return changes


def _policy(text: str) -> str:
    """Write the age of files as Java does.

    >>> _policy("Delete,72"), _policy("delete,30M")
    ('delete,72h', 'delete,30m')
    """
    method, _, age = text.lower().partition(",")
    unit = "h" if age.isdecimal() else ""
    return f"{method.strip()},{age}{unit}"


def megabytes(count: int) -> int:
    """Convert a limit in megabytes to bytes.

    Raises:
        ParamError: the limit is not within 1..20.
    """
    if not 1 <= count <= 20:
        raise ParamError("illegal value for maxMsgSizeInMB, value must be in 1..20")
    return count * MIB


def flow_changes(params: Params) -> dict[str, object]:
    """The flow control and priority in the parameters, for a cluster or a group.

    Raises:
        ParamError: rules or numbers are not valid.
    """
    changes = _priority(params)
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


def _priority(params: Params) -> dict[str, object]:
    priority = params.number("qryPriorityId")
    if priority is None:
        return {}
    if priority // 100 not in _DIGITS or priority % 100 not in _DIGITS:
        raise ParamError(
            "illegal value for qryPriorityId, value must be in 101..303, with hundreds and units "
            "of 1 to 3"
        )
    return {"priority": priority}


_DIGITS = (1, 2, 3)
