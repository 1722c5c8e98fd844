"""The master's methods over HTTP that are about topics (10.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from coherer.broker.catalog import Catalog
from coherer.broker.configuration import (
    CatalogError,
    Change,
    Deployment,
    OpCode,
    TopicControl,
)
from coherer.broker.fleet import Hosted
from coherer.server.admin import Method
from coherer.server.admin_params import Answer, Json, Params, found
from coherer.server.tubemq.master.admin_forms import (
    MIB,
    Office,
    adding,
    deployment_form,
    ids,
    listed,
    megabytes,
    outcomes,
    props_changes,
    stamp_form,
    unchanged,
    updating,
)


class TopicAdmin:
    """Topics: where they are, and what holds for them everywhere."""

    def __init__(self, office: Office) -> None:
        self._office = office

    def methods(self) -> dict[str, Method]:
        """By name; the old names of some are kept."""
        add, update = Method(self.add, changes=True), Method(self.update, changes=True)
        delete = Method(self._mover(Catalog.delete_topic), changes=True)
        restore = Method(self._mover(Catalog.restore_topic), changes=True)
        remove = Method(self._mover(Catalog.remove_topic), changes=True)
        return {
            "admin_query_topic_info": Method(self.query),
            "admin_query_topic_deploy_info": Method(self.query_deployed),
            "admin_query_topic_deploy_configure": Method(self.query_records),
            "admin_query_cluster_topic_view": Method(self.view),
            "admin_query_deployed_topics": Method(self.by_broker),
            "admin_query_deployed_broker_ids": Method(self.brokers),
            "admin_add_topic_deploy_info": add,
            "admin_add_new_topic_record": add,
            "admin_update_topic_deploy_info": update,
            "admin_modify_topic_info": update,
            "admin_delete_topic_deploy_info": delete,
            "admin_delete_topic_info": delete,
            "admin_redo_deleted_topic_deploy_info": restore,
            "admin_redo_deleted_topic_info": restore,
            "admin_remove_topic_deploy_info": remove,
            "admin_remove_topic_info": remove,
            "admin_query_topic_control_info": Method(self.query_control),
            "admin_add_topic_control_info": Method(self.control, changes=True),
            "admin_update_topic_control_info": Method(self.control, changes=True),
            "admin_set_topic_authorize_control": Method(self.authorize, changes=True),
        }

    # -- queries

    def query(self, params: Params) -> Answer:
        """admin_query_topic_info: what other systems ask to see whether a topic is ready."""
        forms: list[Answer] = []
        for topic, deployments in self._chosen(params).items():
            control = self._control(topic)
            shown: Answer = {
                "topicName": topic,
                "maxMsgSizeInMB": self._megabytes(topic),
                "topicInfo": [self._running_form(d) for d in deployments],
                **self._totals(topic, deployments),
                "authData": {},
            }
            if control.authorize:
                shown["authData"] = self._rights(topic, control)
            forms.append(shown)
        return found(forms)

    def query_deployed(self, params: Params) -> Answer:
        """admin_query_topic_deploy_info."""
        return found(
            {
                **self._control_form(self._control(topic)),
                "deployInfo": [self._running_form(d) for d in deployments],
                **self._totals(topic, deployments),
            }
            for topic, deployments in self._chosen(params).items()
        )

    def query_records(self, params: Params) -> Answer:
        """admin_query_topic_deploy_configure."""
        return found(
            deployment_form(self._office, deployment)
            for deployments in self._chosen(params).values()
            for deployment in deployments
        )

    def view(self, params: Params) -> Answer:
        """admin_query_cluster_topic_view."""
        forms: list[Answer] = []
        for topic, deployments in self._chosen(params).items():
            totals = self._totals(topic, deployments)
            running = self._hosted(topic)
            forms.append(
                {
                    "topicName": topic,
                    "totalCfgBrokerCnt": len(deployments),
                    "totalCfgNumStore": sum(d.props.stores for d in deployments),
                    "totalRunNumStore": sum(hosted.stores for hosted in running.values()),
                    "totalCfgNumPart": totals["totalCfgNumPart"],
                    "totalRunNumPartCount": totals["totalRunNumPartCount"],
                    "isSrvAcceptPublish": totals["isSrvAcceptPublish"],
                    "isSrvAcceptSubscribe": totals["isSrvAcceptSubscribe"],
                    "enableAuthControl": self._control(topic).authorize,
                }
            )
        return found(forms)

    def by_broker(self, params: Params) -> Answer:
        """admin_query_deployed_topics."""
        chosen = set(params.numbers("brokerId"))
        forms: list[Answer] = []
        for broker in sorted(self._office.catalog.brokers):
            if not chosen or broker in chosen:
                topics: list[Json] = [d.topic for d in self._office.catalog.topics_of(broker)]
                count = len(topics)
                forms.append({"brokerId": broker, "topicName": topics, "topicCount": count})
        return found(forms)

    def brokers(self, params: Params) -> Answer:
        """admin_query_deployed_broker_ids."""
        with_ip = params.flag("withIp")
        forms: list[Answer] = []
        for topic, deployments in self._chosen(params).items():
            records = [self._office.catalog.broker(d.broker) for d in deployments]
            shown: list[Json] = [
                {"brokerId": record.id, "brokerIp": record.host} if with_ip else record.id
                for record in records
            ]
            forms.append({"topicName": topic, "brokerInfo": shown, "brokerCnt": len(shown)})
        return found(forms)

    def _chosen(self, params: Params) -> dict[str, list[Deployment]]:
        topics, brokers = set(params.words("topicName")), set(params.numbers("brokerId"))
        status = params.number("topicStatusId")
        chosen: dict[str, list[Deployment]] = {}
        for topic in sorted(self._office.catalog.topics):
            deployments = [
                deployment
                for broker, deployment in sorted(self._office.catalog.topics[topic].items())
                if (not brokers or broker in brokers)
                and (status is None or deployment.status == status)
            ]
            if deployments and (not topics or topic in topics):
                chosen[topic] = deployments
        return chosen

    def _hosted(self, topic: str) -> dict[int, Hosted]:
        """What the brokers that are there say about a topic."""
        fleet = self._office.fleet
        return {broker.id: broker.hosted[topic] for broker in fleet if topic in broker.hosted}

    def _open(self, topic: str) -> tuple[set[int], set[int]]:
        """Where producers may send, and consumers read."""
        now_ms = self._office.state.now_ms()
        fleet = self._office.fleet
        return (
            {broker for broker, _ in fleet.publishable(topic, now_ms)},
            {broker for broker, _ in fleet.subscribable(topic, now_ms)},
        )

    def _totals(self, topic: str, deployments: list[Deployment]) -> Answer:
        publish, subscribe = self._open(topic)
        held = {deployment.broker for deployment in deployments}
        running = self._hosted(topic)
        return {
            "infoCount": len(deployments),
            "totalCfgNumPart": sum(d.props.partitions * d.props.stores for d in deployments),
            "isSrvAcceptPublish": bool(publish & held),
            "isSrvAcceptSubscribe": bool(subscribe & held),
            "totalRunNumPartCount": sum(
                hosted.partitions * hosted.stores
                for broker, hosted in running.items()
                if broker in held
            ),
        }

    def _running_form(self, deployment: Deployment) -> Answer:
        publish, subscribe = self._open(deployment.topic)
        hosted = self._hosted(deployment.topic).get(deployment.broker)
        record = self._office.catalog.broker(deployment.broker)
        run: Answer = {
            "acceptPublish": deployment.broker in publish if hosted else "-",
            "acceptSubscribe": deployment.broker in subscribe if hosted else "-",
            "numPartitions": hosted.partitions if hosted else "-",
            "numTopicStores": hosted.stores if hosted else "-",
            "brokerManageStatus": record.status.text,
        }
        return {**deployment_form(self._office, deployment), "runInfo": run}

    # -- where topics are

    def add(self, params: Params) -> Answer:
        """admin_add_topic_deploy_info, admin_add_new_topic_record."""
        change = adding(self._office, params)
        props = props_changes(params)

        def act(topic: str, broker: int) -> None:
            usual = self._office.catalog.broker(broker).props
            wanted = msgspec.structs.replace(usual, **props)
            self._office.catalog.add_topic(topic, broker, wanted, change)

        return self._each(params, act)

    def update(self, params: Params) -> Answer:
        """admin_update_topic_deploy_info, admin_modify_topic_info."""
        change = updating(self._office, params)
        props = props_changes(params)

        def act(topic: str, broker: int) -> None:
            if not props:
                raise unchanged("Nothing is to be changed!")
            self._office.catalog.update_topic(topic, broker, props, change)

        return self._each(params, act)

    def _mover(
        self, move: Callable[[Catalog, str, int, Change], object]
    ) -> Callable[[Params], Answer]:
        def call(params: Params) -> Answer:
            change = updating(self._office, params)
            catalog = self._office.catalog
            return self._each(params, lambda topic, broker: move(catalog, topic, broker, change))

        return call

    def _each(self, params: Params, act: Callable[[str, int], object]) -> Answer:
        topics, _ = listed(params, "topicName", "brokerId")
        items: list[Mapping[str, Json]] = [
            {"brokerId": broker, "topicName": topic} for broker in ids(params) for topic in topics
        ]
        answer = outcomes(
            items, lambda item: act(str(item["topicName"]), int(str(item["brokerId"])))
        )
        self._office.settle()
        return answer

    # -- what holds for a topic everywhere

    def query_control(self, params: Params) -> Answer:
        """admin_query_topic_control_info."""
        topics = set(params.words("topicName"))
        return found(
            self._control_form(self._control(topic))
            for topic in sorted(self._office.catalog.topics)
            if not topics or topic in topics
        )

    def control(self, params: Params) -> Answer:
        """admin_add_topic_control_info, admin_update_topic_control_info."""
        changes: dict[str, object] = {}
        authorize, number = params.flag("enableAuthControl"), params.number("topicNameId")
        limit = params.number("maxMsgSizeInMB")
        if authorize is not None:
            changes["authorize"] = authorize
        if number is not None:
            changes["topic_id"] = number
        if limit is not None:
            changes["message_bytes_max"] = megabytes(limit)
        return self._change_control(params, changes)

    def authorize(self, params: Params) -> Answer:
        """admin_set_topic_authorize_control."""
        return self._change_control(params, {"authorize": params.flag("isEnable") or False})

    def _change_control(self, params: Params, changes: Mapping[str, object]) -> Answer:
        by_update = "modifyUser" in params
        change = (updating if by_update else adding)(self._office, params)
        (topics,) = listed(params, "topicName")

        def act(item: Mapping[str, Json]) -> None:
            topic = str(item["topicName"])
            if topic not in self._office.catalog.topics:
                raise CatalogError(OpCode.NOT_EXIST, f"There is no topic {topic}.", topic=topic)
            self._office.catalog.control_topic(topic, changes, change)

        answer = outcomes([{"topicName": topic} for topic in topics], act)
        self._office.settle()
        return answer

    def _control(self, topic: str) -> TopicControl:
        return self._office.catalog.topic_controls.get(topic) or TopicControl(topic=topic)

    def _megabytes(self, topic: str) -> int:
        own = self._control(topic).message_bytes_max
        cluster = self._office.catalog.cluster.message_bytes_max
        return max((own if own is not None else cluster) // MIB, 1)

    def _control_form(self, control: TopicControl) -> Answer:
        return {
            "topicName": control.topic,
            "topicNameId": control.topic_id,
            "enableAuthControl": control.authorize,
            "maxMsgSizeInMB": self._megabytes(control.topic),
            **stamp_form(control.stamp),
        }

    def _rights(self, topic: str, control: TopicControl) -> Answer:
        records = [c for c in self._office.catalog.consume_controls.values() if c.topic == topic]
        groups: list[Json] = [
            {"groupName": record.group, **stamp_form(record.stamp)}
            for record in records
            if record.enabled
        ]
        filters: list[Json] = [
            {"groupName": record.group, "filterConds": f",{','.join(sorted(record.filters))},"}
            for record in records
            if record.filtered
        ]
        stamp = stamp_form(control.stamp)
        return {
            "enableAuthControl": control.authorize,
            "createUser": stamp["createUser"],
            "createDate": stamp["createDate"],
            "authConsumeGroup": groups,
            "groupCount": len(groups),
            "authFilterCondSet": filters,
            "filterCount": len(filters),
        }
