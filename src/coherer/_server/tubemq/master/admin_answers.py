"""The forms of records in the answers of HTTP methods."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from coherer._common.moments import moment
from coherer._rules.tubemq.catalog import Catalog
from coherer._rules.tubemq.records import UNDEFINED, ConsumeControl, Deployment, Stamp, TopicProps
from coherer._server.http.params import Answer, Json

_TIME = "%Y%m%d%H%M%S"


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


def _time(ms: int) -> str:
    return moment(ms).astimezone().strftime(_TIME) if ms else ""


def filters_text(filters: Iterable[str]) -> str:
    """The form of filter words; "" without filters.

    >>> filters_text(["b", "a"]), filters_text([])
    (',a,b,', '')
    """
    words = sorted(filters)
    return f",{','.join(words)}," if words else ""


def rules_form(rules: str) -> list[Json]:
    """The form of flow rules."""
    shown: list[Json] = msgspec.json.decode(rules or "[]")
    return shown


def props_form(props: TopicProps) -> Answer:
    """The form of a topic's properties."""
    shown: Answer = msgspec.to_builtins(props)
    return {**shown, "dataStoreType": UNDEFINED, "dataPath": ""}


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


def deployment_form(catalog: Catalog, deployment: Deployment) -> Answer:
    """The form of a topic on a broker."""
    broker = catalog.brokers.get(deployment.broker)
    control = catalog.topic_controls.get(deployment.topic)
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
