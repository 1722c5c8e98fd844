"""Parameters of HTTP methods: the records that they name, and the values that they set."""

from __future__ import annotations

from coherer._rules.tubemq.catalog import Catalog
from coherer._rules.tubemq.records import ConsumeControl, TopicProps
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
