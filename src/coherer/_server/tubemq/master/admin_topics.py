"""The master's HTTP methods for topics (docs/protocol/tubemq.md, section 10.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter

import msgspec

from coherer._rules.tubemq.catalog import Catalog
from coherer._rules.tubemq.records import (
    Change,
    ConsumeControl,
    Deployment,
    Stamp,
    TopicControl,
    TopicProps,
)
from coherer._rules.tubemq.registry import Hosted
from coherer._server.http.app import Method
from coherer._server.http.params import Answer, Json, ParamError, Params, found
from coherer._server.tubemq.master.admin_answers import (
    consume_control_form,
    deployment_form,
    filters_text,
    stamp_form,
)
from coherer._server.tubemq.master.admin_changes import (
    AdminContext,
    Plan,
    Step,
    create_change,
    execute,
    execute_batch,
    unchanged_error,
    update_change,
)
from coherer._server.tubemq.master.admin_parameters import (
    MIB,
    broker_ids,
    has_values,
    megabytes,
    props_changes,
    required_lists,
)


class TopicAdmin:
    """The deployments of topics on brokers, and the settings of topics."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def methods(self) -> dict[str, Method]:
        """The methods by name, legacy names included."""
        add, update = Method(self.add, changes=True), Method(self.update, changes=True)
        add_batch = Method(self.add_batch, changes=True)
        delete = Method(self._status_setter(Catalog.delete_topic), changes=True)
        restore = Method(self._status_setter(Catalog.restore_topic), changes=True)
        remove = Method(self._status_setter(Catalog.remove_topic), changes=True)
        return {
            "admin_query_topic_info": Method(self.query),
            "admin_query_topic_deploy_info": Method(self.query_deployed),
            "admin_query_topic_deploy_configure": Method(self.query_records),
            "admin_query_cluster_topic_view": Method(self.view),
            "admin_query_topic_broker_config_info": Method(self.topic_totals),
            "admin_query_broker_topic_config_info": Method(self.broker_totals),
            "admin_query_deployed_topics": Method(self.by_broker),
            "admin_query_deployed_broker_ids": Method(self.brokers),
            "admin_add_topic_deploy_info": add,
            "admin_add_new_topic_record": add,
            "admin_bath_add_topic_deploy_info": add_batch,
            "admin_bath_add_new_topic_record": add_batch,
            "admin_batch_update_topic_deploy_info": Method(self.update_batch, changes=True),
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
            "admin_batch_add_topic_control_info": Method(self.control_batch, changes=True),
            "admin_batch_update_topic_control_info": Method(self.control_batch, changes=True),
            "admin_delete_topic_control_info": Method(self.uncontrol, changes=True),
            "admin_query_topic_authorize_control": Method(self.query_authorized),
            "admin_set_topic_authorize_control": Method(self.authorize, changes=True),
            "admin_bath_add_topic_authorize_control": Method(self.authorize_batch, changes=True),
            "admin_delete_topic_authorize_control": Method(self.unauthorize, changes=True),
        }

    # -- queries

    def query(self, params: Params) -> Answer:
        """admin_query_topic_info: used by other systems to check whether a topic is ready."""
        forms: list[Answer] = []
        for topic, deployments in self._matching(params).items():
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
        with_rights = params.flag("withGroupAuthInfo")
        forms: list[Answer] = []
        for topic, deployments in self._matching(params).items():
            form: Answer = {
                **self._control_form(self._control(topic)),
                "deployInfo": [self._running_form(d) for d in deployments],
                **self._totals(topic, deployments),
            }
            if with_rights:
                rights: list[Json] = [
                    consume_control_form(record) for record in self._records(topic)
                ]
                form |= {"groupAuthInfo": rights, "groupAuthCount": len(rights)}
            forms.append(form)
        return found(forms)

    def query_records(self, params: Params) -> Answer:
        return found(
            deployment_form(self._context.catalog, deployment)
            for deployments in self._matching(params).values()
            for deployment in deployments
        )

    def view(self, params: Params) -> Answer:
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

    def topic_totals(self, params: Params) -> Answer:
        """admin_query_topic_broker_config_info: the totals of each topic over all brokers."""
        forms: list[Answer] = []
        for topic, deployments in self._chosen(params).items():
            publish, subscribe = self._open(topic)
            hosted = self._hosted(topic)
            held = {deployment.broker for deployment in deployments}
            writable = [hosted[broker] for broker in publish & held if broker in hosted]
            readable = [hosted[broker] for broker in subscribe & held if broker in hosted]
            running = [hosted[b] for b in (publish | subscribe) & held if b in hosted]
            configured = [deployment.props for deployment in deployments]
            forms.append(
                {
                    "topicName": topic,
                    **_counts("{}TotalCfgCnt", configured),
                    **_counts("{}TotalRunCnt", running),
                    **_counts("{}AccPubTotalCnt", writable),
                    **_counts("{}AccSubTotalCnt", readable),
                    "topicSrvAccPubStatus": bool(writable),
                    "topicSrvAccSubStatus": bool(readable),
                    "enableAuthControl": self._control(topic).authorize,
                }
            )
        return found(forms)

    def broker_totals(self, params: Params) -> Answer:
        """admin_query_broker_topic_config_info: the totals of each broker over all topics."""
        context = self._context
        brokers, topics = set(params.numbers("brokerId")), set(params.words("topicName"))
        forms: list[Answer] = []
        for number, record in sorted(context.catalog.brokers.items()):
            deployments = [
                deployment
                for deployment in context.catalog.topics_of(number)
                if not topics or deployment.topic in topics
            ]
            if brokers and number not in brokers:
                continue
            running = context.broker_registry.get(number)
            stopped = context.broker_registry.stopped(number)
            open_ = running is not None and running.online
            publish = open_ and record.publishable and not stopped[1]
            subscribe = open_ and record.subscribable and not stopped[0]
            configured = [deployment.props for deployment in deployments]
            writable = [props for props in configured if publish and props.accept_publish]
            readable = [props for props in configured if subscribe and props.accept_subscribe]
            forms.append(
                {
                    "brokerId": number,
                    "brokerIp": record.host,
                    "brokerPort": record.port,
                    "manageStatus": record.status.text,
                    "acceptPublish": publish,
                    "acceptSubscribe": subscribe,
                    "nodeRunInfo": "-" if running is None else "running",
                    **_counts("{}TotalCfgCnt", configured, "topic"),
                    **_counts("{}AccPubTotalCnt", writable, "topic"),
                    **_counts("{}AccSubTotalCnt", readable, "topic"),
                }
            )
        return found(forms)

    def by_broker(self, params: Params) -> Answer:
        forms: list[Answer] = []
        # As in Java, a broker that does not exist has no topics.
        for broker in sorted(set(params.numbers("brokerId")) or self._context.catalog.brokers):
            topics: list[Json] = [d.topic for d in self._context.catalog.topics_of(broker)]
            count = len(topics)
            forms.append({"brokerId": broker, "topicName": topics, "topicCount": count})
        return found(forms)

    def brokers(self, params: Params) -> Answer:
        with_ip = params.flag("withIp")
        forms: list[Answer] = []
        for topic, deployments in self._chosen(params).items():
            records = [self._context.catalog.broker(d.broker) for d in deployments]
            shown: list[Json] = [
                {"brokerId": record.id, "brokerIp": record.host} if with_ip else record.id
                for record in records
            ]
            forms.append({"topicName": topic, "brokerInfo": shown, "brokerCnt": len(shown)})
        return found(forms)

    def _chosen(self, params: Params) -> dict[str, list[Deployment]]:
        topics, brokers = set(params.words("topicName")), set(params.numbers("brokerId"))
        chosen: dict[str, list[Deployment]] = {}
        for topic in sorted(self._context.catalog.topics):
            deployments = [
                deployment
                for broker, deployment in sorted(self._context.catalog.topics[topic].items())
                if not brokers or broker in brokers
            ]
            if deployments and (not topics or topic in topics):
                chosen[topic] = deployments
        return chosen

    def _matching(self, params: Params) -> dict[str, list[Deployment]]:
        """The chosen deployments with the values in the parameters."""
        status, port = params.number("topicStatusId"), params.number("brokerPort", least=1)
        wanted, known = props_changes(params), self._context.catalog.brokers
        matching = {
            topic: [
                deployment
                for deployment in deployments
                if (status is None or deployment.status == status)
                and (port is None or known[deployment.broker].port == port)
                and has_values(deployment.props, wanted)
            ]
            for topic, deployments in self._chosen(params).items()
        }
        return {topic: deployments for topic, deployments in matching.items() if deployments}

    def _hosted(self, topic: str) -> dict[int, Hosted]:
        """The reports of the registered brokers about a topic."""
        broker_registry = self._context.broker_registry
        return {
            broker.id: broker.hosted[topic] for broker in broker_registry if topic in broker.hosted
        }

    def _open(self, topic: str) -> tuple[set[int], set[int]]:
        """The brokers that producers and consumers may use."""
        now_ms = self._context.state.now_ms()
        broker_registry = self._context.broker_registry
        return (
            {broker for broker, _ in broker_registry.publishable(topic, now_ms)},
            {broker for broker, _ in broker_registry.subscribable(topic, now_ms)},
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
        record = self._context.catalog.broker(deployment.broker)
        run: Answer = {
            "acceptPublish": "-",
            "acceptSubscribe": "-",
            "numPartitions": "-",
            "brokerManageStatus": "-",
        }
        if hosted is not None:
            run = {
                "acceptPublish": deployment.broker in publish,
                "acceptSubscribe": deployment.broker in subscribe,
                "numPartitions": hosted.partitions,
                "numTopicStores": hosted.stores,
                "brokerManageStatus": record.status.text,
            }
        return {**deployment_form(self._context.catalog, deployment), "runInfo": run}

    # -- deployments

    def add(self, params: Params) -> Answer:
        return execute(self._context, self._add_steps(params))

    def add_batch(self, params: Params) -> Answer:
        return execute_batch(
            self._context, params, "topicJsonSet", self._with_known_brokers(self._add_steps)
        )

    def _add_steps(self, params: Params) -> list[Step]:
        change = create_change(self._context, params)
        props = props_changes(params)

        def apply(topic: str, broker: int) -> None:
            usual = self._context.catalog.broker(broker).props
            wanted = msgspec.structs.replace(usual, **props)
            self._context.catalog.add_topic(topic, broker, wanted, change)

        return self._steps(params, apply)

    def update(self, params: Params) -> Answer:
        return execute(self._context, self._update_steps(params))

    def update_batch(self, params: Params) -> Answer:
        return execute_batch(
            self._context, params, "topicJsonSet", self._with_known_brokers(self._update_steps)
        )

    def _update_steps(self, params: Params) -> list[Step]:
        change = update_change(self._context, params)
        props = props_changes(params)

        def apply(topic: str, broker: int) -> None:
            if not props:
                raise unchanged_error("The request changes nothing!")
            self._context.catalog.update_topic(topic, broker, props, change)

        return self._steps(params, apply)

    def _status_setter(
        self, move: Callable[[Catalog, str, int, Change], object]
    ) -> Callable[[Params], Answer]:
        def call(params: Params) -> Answer:
            change = update_change(self._context, params)
            catalog = self._context.catalog
            steps = self._steps(params, lambda topic, broker: move(catalog, topic, broker, change))
            return execute(self._context, steps)

        return call

    def _with_known_brokers(self, plan: Plan) -> Plan:
        """Check that all brokers exist, so that an unknown one refuses the whole batch."""

        def checked(params: Params) -> Iterable[Step]:
            for broker in broker_ids(params):
                if broker not in self._context.catalog.brokers:
                    raise ParamError(f"Not found broker configure by brokerId = {broker}")
            return plan(params)

        return checked

    def _steps(self, params: Params, apply: Callable[[str, int], object]) -> list[Step]:
        topics, _ = required_lists(params, "topicName", "brokerId")
        return [
            ({"brokerId": broker, "topicName": topic}, partial(apply, topic, broker))
            for broker in broker_ids(params)
            for topic in topics
        ]

    # -- settings of topics

    def query_control(self, params: Params) -> Answer:
        topics = set(params.words("topicName"))
        return found(
            self._control_form(self._control(topic))
            for topic in sorted(self._context.catalog.topics)
            if not topics or topic in topics
        )

    def control(self, params: Params) -> Answer:
        return execute(self._context, self._setting_steps(params))

    def control_batch(self, params: Params) -> Answer:
        return execute_batch(self._context, params, "topicCtrlJsonSet", self._setting_steps)

    def uncontrol(self, params: Params) -> Answer:
        """admin_delete_topic_control_info: refused while the topic is on a broker."""
        update_change(self._context, params)
        (topics,) = required_lists(params, "topicName")
        catalog = self._context.catalog
        return execute(
            self._context,
            [({"topicName": topic}, partial(catalog.release_topic, topic)) for topic in topics],
        )

    def _setting_steps(self, params: Params) -> list[Step]:
        changes: dict[str, object] = {}
        authorize = params.flag("enableAuthControl")
        number = params.number("topicNameId", least=0)
        limit = params.number("maxMsgSizeInMB")
        if authorize is not None:
            changes["authorize"] = authorize
        if number is not None:
            changes["topic_id"] = number
        if limit is not None:
            changes["message_bytes_max"] = megabytes(limit)
        return self._control_steps(params, changes)

    def authorize(self, params: Params) -> Answer:
        return execute(self._context, self._authorize_steps(params))

    def authorize_batch(self, params: Params) -> Answer:
        return execute_batch(self._context, params, "topicJsonSet", self._authorize_steps)

    def unauthorize(self, params: Params) -> Answer:
        """admin_delete_topic_authorize_control: all groups may read the topic again."""
        change = update_change(self._context, params)
        (topics,) = required_lists(params, "topicName")
        catalog = self._context.catalog

        def apply(topic: str) -> None:
            if self._control(topic).authorize:
                catalog.control_topic(topic, {"authorize": False}, change)

        return execute(
            self._context, [({"topicName": topic}, partial(apply, topic)) for topic in topics]
        )

    def query_authorized(self, params: Params) -> Answer:
        """admin_query_topic_authorize_control: the switch and the groups, in their legacy form."""
        topics = set(params.words("topicName"))
        return found(
            self._authorized_form(topic)
            for topic in sorted(self._context.catalog.topics)
            if not topics or topic in topics
        )

    def _authorized_form(self, topic: str) -> Answer:
        control, records = self._control(topic), self._records(topic)
        groups: list[Json] = [
            {"topicName": topic, "groupName": record.group, **_author_form(record.stamp)}
            for record in records
        ]
        filters: list[Json] = [
            {
                "topicName": topic,
                "groupName": record.group,
                "condStatus": 2 if record.filtered else 0,
                "filterConds": filters_text(record.filters),
                **_author_form(record.stamp),
            }
            for record in records
        ]
        return {
            "topicName": topic,
            "isEnable": control.authorize,
            **_author_form(control.stamp),
            "authConsumeGroup": groups,
            "groupCount": len(groups),
            "authFilterCondSet": filters,
            "filterCount": len(filters),
        }

    def _authorize_steps(self, params: Params) -> list[Step]:
        return self._control_steps(params, {"authorize": params.flag("isEnable") or False})

    def _control_steps(self, params: Params, changes: Mapping[str, object]) -> list[Step]:
        by_update = "modifyUser" in params
        change = (update_change if by_update else create_change)(self._context, params)
        (topics,) = required_lists(params, "topicName")

        catalog = self._context.catalog
        return [
            ({"topicName": topic}, partial(catalog.control_topic, topic, changes, change))
            for topic in topics
        ]

    def _control(self, topic: str) -> TopicControl:
        return self._context.catalog.topic_controls.get(topic) or TopicControl(topic=topic)

    def _megabytes(self, topic: str) -> int:
        own = self._control(topic).message_bytes_max
        cluster = self._context.catalog.cluster.message_bytes_max
        return max((own if own is not None else cluster) // MIB, 1)

    def _control_form(self, control: TopicControl) -> Answer:
        return {
            "topicName": control.topic,
            "topicNameId": control.topic_id,
            "enableAuthControl": control.authorize,
            "maxMsgSizeInMB": self._megabytes(control.topic),
            **stamp_form(control.stamp),
        }

    def _records(self, topic: str) -> list[ConsumeControl]:
        controls = self._context.catalog.consume_controls.values()
        return sorted((c for c in controls if c.topic == topic), key=attrgetter("group"))

    def _rights(self, topic: str, control: TopicControl) -> Answer:
        records = self._records(topic)
        groups: list[Json] = [
            {"groupName": record.group, **_author_form(record.stamp)} for record in records
        ]
        filters: list[Json] = []
        for record in records:
            who = _author_form(record.stamp)
            del who["createUser"]
            filters.append(
                {
                    "groupName": record.group,
                    "condStatus": 2 if record.filtered else 0,
                    "filterConds": filters_text(record.filters) if record.filtered else "",
                    **who,
                }
            )
        stamp = stamp_form(control.stamp)
        return {
            "enableAuthControl": control.authorize,
            "createUser": stamp["modifyUser"],
            "createDate": stamp["modifyDate"],
            "authConsumeGroup": groups,
            "groupCount": len(groups),
            "authFilterCondSet": filters,
            "filterCount": len(filters),
        }


def _counts(name: str, items: Sequence[TopicProps | Hosted], thing: str = "broker") -> Answer:
    """The numbers of brokers or topics, stores and partitions."""
    return {
        name.format(thing): len(items),
        name.format("store"): sum(one.stores for one in items),
        name.format("part"): sum(one.stores * one.partitions for one in items),
    }


def _author_form(stamp: Stamp) -> Answer:
    """The author and times of a record, for the legacy methods."""
    form = stamp_form(stamp)
    return {name: form[name] for name in ("createUser", "createDate", "modifyUser", "modifyDate")}
