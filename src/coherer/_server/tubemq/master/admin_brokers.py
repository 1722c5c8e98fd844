"""The master's methods over HTTP that are about brokers (10.2)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from coherer._rules.tubemq.records import BrokerRecord, ManageStatus
from coherer._rules.tubemq.registry import PAUSED_BY_ERRORS
from coherer._server.node.admin import Method
from coherer._server.node.admin_params import Answer, ParamError, Params, done, found
from coherer._server.tubemq.master.admin_forms import (
    Office,
    Step,
    adding,
    batch,
    carry_out,
    deployment_form,
    ids,
    props_changes,
    props_form,
    stamp_form,
    unchanged,
    updating,
)

_NUMBERS = {
    "port": "brokerPort",
    "tls_port": "brokerTLSPort",
    "web_port": "brokerWebPort",
    "region": "regionId",
    "group": "groupId",
}


class BrokerAdmin:
    """Brokers: their records, and how they are."""

    def __init__(self, office: Office) -> None:
        self._office = office

    def methods(self) -> dict[str, Method]:
        """By name."""
        return {
            "admin_query_broker_configure": Method(self.query),
            "admin_query_broker_run_status": Method(self.status),
            "admin_add_broker_configure": Method(self.add, changes=True),
            "admin_batch_add_broker_configure": Method(self.add_batch, changes=True),
            "admin_bath_add_broker_configure": Method(self.add_batch, changes=True),
            "admin_update_broker_configure": Method(self.update, changes=True),
            "admin_batch_update_broker_configure": Method(self.update_batch, changes=True),
            "admin_delete_broker_configure": Method(self.delete, changes=True),
            "admin_online_broker_configure": Method(self._setter(ManageStatus.ONLINE), True),
            "admin_offline_broker_configure": Method(self._setter(ManageStatus.OFFLINE), True),
            "admin_reload_broker_configure": Method(self.reload, changes=True),
            "admin_set_broker_read_or_write": Method(self.open, changes=True),
            "admin_release_broker_autoforbidden_status": Method(self.release, changes=True),
        }

    # -- queries

    def query(self, params: Params) -> Answer:
        """admin_query_broker_configure."""
        with_topics = params.flag("withTopic")
        return found(self._form(record, with_topics) for record in self._chosen(params))

    def status(self, params: Params) -> Answer:
        """admin_query_broker_run_status."""
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
        catalog = self._office.catalog
        holders = {broker for topic in topics for broker in catalog.topics.get(topic, {})}
        return [
            record
            for _, record in sorted(catalog.brokers.items())
            if (not numbers or record.id in numbers)
            and (not hosts or record.host in hosts)
            and (not topics or record.id in holders)
        ]

    def _form(self, record: BrokerRecord, with_topics: bool | None) -> Answer:
        is_running = self._office.broker_registry.get(record.id) is not None
        form: Answer = {
            "brokerId": record.id,
            "brokerIp": record.host,
            "brokerPort": record.port,
            "brokerTLSPort": record.tls_port,
            "brokerWebPort": record.web_port,
            "manageStatus": record.status.text,
            "isConfChanged": is_running and not self._is_settled(record.id),
            "isConfLoaded": self._is_settled(record.id),
            "regionId": record.region,
            "groupId": record.group,
            **props_form(record.props),
            **stamp_form(record.stamp),
        }
        if with_topics:
            form["topicSet"] = [
                deployment_form(self._office, deployment)
                for deployment in self._office.catalog.topics_of(record.id)
            ]
        return form

    def _run_form(self, record: BrokerRecord) -> Answer:
        running = self._office.broker_registry.get(record.id)
        stopped = self._office.broker_registry.stopped(record.id)
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
                "enableTLS", "subStatus", "isConfChanged", "isConfLoaded", "isBrokerOnline",
                "brokerVersion", "acceptPublish", "acceptSubscribe",
            ):  # fmt: skip
                form[name] = "-"
            return form
        settled = self._is_settled(record.id)
        form |= {
            "enableTLS": running.secure,
            "isRepAbnormal": PAUSED_BY_ERRORS in (running.read_status, running.write_status),
            "runStatus": "running",
            "subStatus": "idle" if settled else "processing_event",
            "isConfChanged": _text(not settled),
            "isConfLoaded": _text(settled),
            "isBrokerOnline": _text(running.online),
            "brokerVersion": running.version or "-",
            "acceptPublish": _text(running.online and record.publishable and not stopped[1]),
            "acceptSubscribe": _text(running.online and record.subscribable and not stopped[0]),
        }
        if not settled:
            form["stepOp"] = 3
        return form

    def _is_settled(self, broker: int) -> bool:
        """Whether the broker holds what it should."""
        running = self._office.broker_registry.get(broker)
        if running is None:
            return False
        return running.configuration == self._office.master.brokers.configurations.of(broker).key

    # -- changes

    def add(self, params: Params) -> Answer:
        """admin_add_broker_configure."""
        return carry_out(self._office, self._adding(params))

    def add_batch(self, params: Params) -> Answer:
        """admin_batch_add_broker_configure, admin_bath_add_broker_configure."""
        return batch(self._office, params, "brokerJsonSet", self._adding)

    def _adding(self, params: Params) -> list[Step]:
        change = adding(self._office, params)
        host = params.required("brokerIp")
        number = params.number("brokerId") or _id_of(host)
        cluster = self._office.catalog.cluster
        fields: dict[str, object] = {
            "port": cluster.broker_port,
            "tls_port": cluster.broker_tls_port,
            "web_port": cluster.broker_web_port,
            **self._numbers(params),
        }
        props = msgspec.structs.replace(cluster.props, **props_changes(params))
        record = BrokerRecord(id=number, host=host, props=props)
        record = msgspec.structs.replace(record, **fields)
        item: Answer = {"brokerId": number, "brokerIp": host}
        return [(item, lambda: self._office.catalog.add_broker(record, change))]

    def update(self, params: Params) -> Answer:
        """admin_update_broker_configure."""
        return carry_out(self._office, self._updating(params))

    def update_batch(self, params: Params) -> Answer:
        """admin_batch_update_broker_configure."""
        return batch(self._office, params, "brokerJsonSet", self._updating)

    def _updating(self, params: Params) -> list[Step]:
        change = updating(self._office, params)
        props, numbers = props_changes(params), self._numbers(params)

        def act(broker: int) -> None:
            catalog = self._office.catalog
            fields = dict(numbers)
            if props:
                old = catalog.broker(broker).props
                fields["props"] = msgspec.structs.replace(old, **props)
            if not fields:
                raise unchanged("Nothing is to be changed!")
            catalog.update_broker(broker, fields, change)

        return self._steps(params, act)

    def delete(self, params: Params) -> Answer:
        """admin_delete_broker_configure."""
        updating(self._office, params)
        return self._each(params, self._office.catalog.remove_broker)

    def reload(self, params: Params) -> Answer:
        """admin_reload_broker_configure: brokers are told at once here, so it only looks."""
        updating(self._office, params)
        return self._each(params, self._office.catalog.broker)

    def open(self, params: Params) -> Answer:
        """admin_set_broker_read_or_write."""
        change = updating(self._office, params)
        publish, subscribe = params.flag("acceptPublish"), params.flag("acceptSubscribe")

        def act(broker: int) -> None:
            record = self._office.catalog.broker(broker)
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
                raise unchanged(f"Unchanged  manageStatus({status.text})!")
            self._office.catalog.set_status(broker, status, change)

        return self._each(params, act)

    def release(self, params: Params) -> Answer:
        """admin_release_broker_autoforbidden_status."""
        updating(self._office, params)
        for broker in ids(params):
            self._office.broker_registry.release(broker, self._office.state.now_ms())
        self._office.settle()
        return done()

    def _setter(self, status: ManageStatus) -> Callable[[Params], Answer]:
        def call(params: Params) -> Answer:
            change = updating(self._office, params)

            def act(broker: int) -> None:
                if self._office.catalog.broker(broker).status is status:
                    raise unchanged(f"Unchanged  manageStatus({status.text})!")
                self._office.catalog.set_status(broker, status, change)

            return self._each(params, act)

        return call

    def _each(self, params: Params, act: Callable[[int], object]) -> Answer:
        return carry_out(self._office, self._steps(params, act))

    def _steps(self, params: Params, act: Callable[[int], object]) -> list[Step]:
        known = self._office.catalog.brokers
        return [
            (
                {"brokerId": number, "brokerIp": known[number].host if number in known else ""},
                partial(act, number),
            )
            for number in ids(params)
        ]

    def _numbers(self, params: Params) -> dict[str, object]:
        given = ((field, params.number(name)) for field, name in _NUMBERS.items())
        fields: dict[str, object] = {field: value for field, value in given if value is not None}
        for field, name in _NUMBERS.items():
            value = fields.get(field, 1)
            if field.endswith("port") and not 0 < int(str(value)) <= 0xFFFF:
                raise ParamError(f"illegal value for {name}, value must be in 1..65535")
        return fields


def _id_of(host: str) -> int:
    """The id of a broker that is added without one: its IPv4 address as a number."""
    parts = host.split(".")
    if len(parts) != 4 or not all(part.isdecimal() and int(part) < 256 for part in parts):
        raise ParamError("Parameter brokerId is missing or value is blank!")
    first, second, third, fourth = map(int, parts)
    return abs((first << 24 | second << 16 | third << 8 | fourth) - (first >> 7 << 32))


def _text(value: bool) -> str:
    return "true" if value else "false"
