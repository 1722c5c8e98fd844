"""Every command of Java's `mqadmin` 4.9.3, how it is called here, and what it then shows.

The table was made against a Java cluster (`test_mqadmin.py` runs it on Java too), and
`docs/compatibility.md` has a row for each. They run in this order; what takes something away is
last.
Names in braces are filled in: broker (address), topic, group, producers (its group), mid (offset
message id), uid (unique id), client (a consumer's id), folder.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A command.

    Args:
        name: its name.
        arguments: the rest of the line.
        shows: a pattern that is found in what it prints.
        acl: it needs a broker with access control.
        absent: why it is not run; empty where it is.
    """

    name: str
    arguments: str = ""
    shows: str = ""
    acl: bool = False
    absent: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.arguments}".strip()


FAILED = r"SubCommandException|sub command .* not exist"
"""What a command prints that did not do it."""

NOT_RUN = [
    Command("startMonitoring", absent="runs for ever; what it asks for, the others ask for too"),
    Command("clusterRT", absent="runs for ever; it sends to the topic of the broker's name"),
]

COMMANDS = [
    Command("updateTopic", "-c DefaultCluster -t other -r 2 -w 2", r"create topic .* success"),
    Command("updateTopicPerm", "-b {broker} -t other -p 4", r"perm from 6 to 4 .* success"),
    Command("topicRoute", "-t {topic}", r'(?s)"brokerName":"broker-a".*"readQueueNums":4'),
    Command("topicStatus", "-t {topic}", r"broker-a +3 +0 +2 "),
    Command("topicClusterList", "-t {topic}", r"DefaultCluster"),
    Command("topicList", "", r"(?s)(?=.*{topic})(?=.*TBW102)(?=.*%RETRY%{group})"),
    Command("topicList", "-c", r"DefaultCluster +{topic} +{group}"),
    Command("updateOrderConf", "-t {topic} -m put -v broker-a:4", r"update orderConf success"),
    Command("updateOrderConf", "-t {topic} -m get", r"orderConf=\[broker-a:4\]"),
    Command("updateOrderConf", "-t {topic} -m delete", r"delete orderConf success"),
    Command("allocateMQ", "-t {topic} -i 10.0.0.1,10.0.0.2", r'"10.0.0.2":\[.*"queueId"'),
    Command("updateSubGroup", "-b {broker} -g othergroup -s true -r 3", r"retryMaxTimes=3"),
    Command("getConsumerConfig", "-g othergroup", r"retryMaxTimes += +3"),
    Command("consumerProgress", "", r"{group} +1 +V4_9_3 +PUSH +CLUSTERING +\d+ +0"),
    Command("consumerProgress", "-g {group}", r"(?s){topic} +broker-a +3 +2 +2 .*Diff Total: 0"),
    Command("consumerStatus", "-g {group}", r"(?s){client} +V4_9_3.*Rebalance OK"),
    Command("consumerStatus", "-g {group} -i {client} -s", r"PROP_CONSUME_TYPE +: CONSUME_PASSI"),
    Command("consumerConnection", "-g {group}", r"(?s){client}.*%RETRY%{group} +\*.*CLUSTERING"),
    Command("producerConnection", "-g {producers} -t {topic}", r"0001 .* JAVA +V4_9_3"),
    Command("cloneGroupOffset", "-s {group} -d third -t {topic}", r"clone group offset success"),
    Command("clusterList", "", r"DefaultCluster +broker-a +0 +{broker} +V4_9_3"),
    Command("clusterList", "-m", r"DefaultCluster +broker-a +0 +0 +\d+ +\d+"),
    Command("brokerStatus", "-b {broker}", r"(?s)(?=.*brokerVersionDesc +: V4_9_3)(?=.*putTps)"),
    Command("brokerConsumeStats", "-b {broker}", r"(?s){topic} +{group}.*Diff Total: -?\d"),
    Command("getBrokerConfig", "-b {broker}", r"brokerName += +broker-a"),
    Command(
        "updateBrokerConfig",
        "-b {broker} -k maxTransferCountOnMessageInMemory -v 64",
        r"update broker config success",
    ),
    Command("cleanExpiredCQ", "-b {broker}", r"success"),
    Command("cleanUnusedTopic", "-b {broker}", r"success"),
    Command("sendMsgStatus", "-b broker-a -s 10 -c 2", r"sendStatus=SEND_OK"),
    Command("statsAll", "-t {topic}", r"{topic} +{group} +0 "),
    Command("queryCq", "-t {topic} -q 0 -i 0 -c 2 -b {broker}", r"(?s)max: 2, min: 0.*tagsCode=98"),
    Command("queryMsgById", "-i {mid}", r"(?s)Tags: +\[b\].*consumerGroup={group}, trackType=CONS"),
    Command("queryMsgById", "-i {mid} -g {group} -d {client}", r"consumeResult=CR_SUCCESS"),
    Command("queryMsgById", "-i {mid} -s true", r"sendStatus=SEND_OK"),
    Command("queryMsgByKey", "-t {topic} -k k1", r"[0-9A-F]+ +1 +0"),
    Command("queryMsgByUniqueKey", "-t {topic} -i {uid}", r"(?s)Keys: +\[k0\].*{group}"),
    Command("queryMsgByOffset", "-t {topic} -b broker-a -i 0 -o 0", r"OffsetID: +{mid}"),
    Command("QueryMsgTraceById", "-i {uid}", r"(?s)#Type.*Pub.*{producers}"),
    Command("printMsg", "-t {topic} -d true", r"MSGID: {uid}"),
    Command("printMsgByQueue", "-t {topic} -a broker-a -i 0 -p true", r"MSGID: {uid}"),
    Command("consumeMessage", "-t {topic} -c 2", r"(?s)Consume ok.*MSGID"),
    Command("sendMessage", "-t {topic} -p hello -k kk -c tt", r"broker-a +\d +SEND_OK"),
    Command("checkMsgSendRT", "-t {topic} -a 3 -s 10", r"Avg RT: "),
    Command("getNamesrvConfig", "", r"orderMessageEnable += +false"),
    Command("updateNamesrvConfig", "-k orderMessageEnable -v true", r"update name server config"),
    Command("updateKvConfig", "-s space -k one -v 1", r"kv config to namespace success"),
    Command("deleteKvConfig", "-s space -k one", r"delete kv config from namespace success"),
    Command("exportMetadata", "-c DefaultCluster -f {folder}", r"export .*metadata.json success"),
    Command("exportConfigs", "-c DefaultCluster -f {folder}", r"export .*configs.json success"),
    Command("exportMetrics", "-c DefaultCluster -f {folder}", r"export .*metrics.json success"),
    Command("resetOffsetByTime", "-g {group} -t {topic} -s 0", r"broker-a +3 +0"),
    Command("skipAccumulatedMessage", "-g {group} -t {topic}", r"broker-a +3 +\d"),
    Command("wipeWritePerm", "-b broker-a", r"wipe write perm .* OK, \d\d"),
    Command("addWritePerm", "-b broker-a", r"add write perm .* OK, \d\d"),
    Command("deleteSubGroup", "-b {broker} -g othergroup", r"delete subscription group .* success"),
    Command(
        "deleteTopic", "-t other -c DefaultCluster", r"(?s)from cluster .* success.*NameServer"
    ),
    Command("updateAclConfig", "-b {broker} -a newuser -s 12345678", r"success", acl=True),
    Command("getAccessConfigSubCommand", "-b {broker}", r"newuser", acl=True),
    Command("clusterAclConfigVersion", "-b {broker}", r"broker-a", acl=True),
    Command("updateGlobalWhiteAddr", "-b {broker} -g 10.9.8.7", r"success", acl=True),
    Command("deleteAccessConfig", "-b {broker} -a newuser", r"success", acl=True),
]
