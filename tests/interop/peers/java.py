"""The Java master and broker: configured first, then the brokers are started."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from pathlib import Path

from .cache import JavaSystem
from .process import Child, StartError, free_ports, listens

HOST = "127.0.0.1"  # of masters
TOKEN = "interop"
MASTER_MAIN = "org.apache.inlong.tubemq.server.tools.MasterStartup"
BROKER_MAIN = "org.apache.inlong.tubemq.server.tools.BrokerStartup"
START_TIMEOUT_S = 120.0
TLS_PORT = 8124  # what a broker without TLS reports, and the master compares
USER = "interop"

# Java shows messages to consumers with filters only when they are on disk: its shortest periods.
QUICK_FLUSH = {"memCacheFlushIntvl": 4000, "unflushInterval": 1000}

# Without these three templates the HTTP API does what it is told and answers 500.
TEMPLATES = {
    "screen/webapi.vm": "$sb",
    "screen/tubeweb.vm": "$sb",
    "layout/default.vm": "$screen_placeholder",
}


def broker_host(broker_id: int) -> str:
    """An address for one broker alone: Java's master takes only one broker per address."""
    return f"127.0.1.{broker_id}"


class WebApi:
    """The HTTP administration of a master, Java's or ours.

    Args:
        port: its HTTP port.
        token: what it wants to hear before it modifies anything.
    """

    def __init__(self, port: int, token: str = TOKEN) -> None:
        self.port = port
        self.token = token

    def __call__(self, method: str, **parameters: object) -> dict[str, object]:
        """One call; the JSON object of its answer."""
        texts = {name: str(value) for name, value in parameters.items()}
        query = urllib.parse.urlencode({"method": method, "confModAuthToken": self.token, **texts})
        url = f"http://{HOST}:{self.port}/webapi.htm?{query}"
        with urllib.request.urlopen(url, timeout=10) as response:
            answer: dict[str, object] = json.loads(response.read())
        return answer

    def change(self, method: str, **parameters: object) -> None:
        """One modification.

        Raises:
            AssertionError: it was refused, as a whole or for one item.
        """
        answer = self(method, createUser=USER, modifyUser=USER, **parameters)
        assert answer["result"] is True, answer
        items = answer.get("data") or []
        assert isinstance(items, list)
        for item in items:
            assert item.get("success", True), answer

    def answers(self) -> bool:
        """Whether it is up and active."""
        try:
            return self("admin_query_broker_configure").get("result") is True
        except (OSError, urllib.error.URLError, ValueError):
            return False

    def add_broker(self, broker_id: int, host: str, port: int, web_port: int) -> None:
        """Makes a broker known and brings it online, which must be before it starts."""
        self.change(
            "admin_add_broker_configure",
            brokerId=broker_id,
            brokerIp=host,
            brokerPort=port,
            brokerWebPort=web_port,
            brokerTLSPort=TLS_PORT,
        )
        self.change("admin_online_broker_configure", brokerId=broker_id)

    def add_topic(
        self, topic: str, broker_ids: Iterable[int], partitions: int, **settings: int
    ) -> None:
        """Deploys a topic with one store on brokers; further settings are the API's own."""
        self.change(
            "admin_add_new_topic_record",
            topicName=topic,
            brokerId=",".join(map(str, broker_ids)),
            numPartitions=partitions,
            numTopicStores=1,
            **(settings or QUICK_FLUSH),
        )

    def writable(self, topic: str) -> bool:
        """Whether producers are given the topic on each of its brokers."""
        data = self("admin_query_topic_info", topicName=topic).get("data")
        if not isinstance(data, list) or not data:
            return False
        states = [one["runInfo"]["acceptPublish"] for item in data for one in item["topicInfo"]]
        return bool(states) and all(str(state).lower() == "true" for state in states)


class JavaMaster:
    """A Java master with its metadata in a folder.

    Args:
        tube: the Java system.
        folder: where it keeps everything.
        balance_ms: how often groups are balanced (Java ships 30,000).
        consumer_timeout_ms: after how much silence a consumer is taken for dead.
    """

    def __init__(
        self,
        tube: JavaSystem,
        folder: Path,
        *,
        balance_ms: int = 2_000,
        consumer_timeout_ms: int = 30_000,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port, self.web_port, rep_port, metrics_port = free_ports(4)
        self.address = f"{HOST}:{self.port}"
        for name, text in TEMPLATES.items():
            path = folder / "resources" / "templates" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        config = folder / "master.ini"
        config.write_text(f"""[master]
hostName={HOST}
port={self.port}
webPort={self.web_port}
webResourcePath={folder}/resources
confModAuthToken={TOKEN}
consumerBalancePeriodMs={balance_ms}
firstBalanceDelayAfterStartMs={balance_ms}
consumerHeartbeatTimeoutMs={consumer_timeout_ms}
producerHeartbeatTimeoutMs=30000
brokerHeartbeatTimeoutMs=25000

[meta_bdb]
repGroupName=interop
repNodeName=interop1
repNodePort={rep_port}
repHelperHost={HOST}:{rep_port}
metaDataPath={folder}/meta
metaLocalSyncPolicy=1
metaReplicaSyncPolicy=3
repReplicaAckPolicy=1
repStatusCheckTimeoutMs=10000

[prometheus]
promEnable=false
promHttpPort={metrics_port}
""")
        self.web = WebApi(self.web_port)
        command = tube.command("Leash", MASTER_MAIN, "-f", str(config), log="warn")
        self.child = Child("java-master", command, folder)

    def wait(self) -> None:
        """Until it takes configuration."""
        self.child.wait_for(self.web.answers, START_TIMEOUT_S, "answer on HTTP")

    def stop(self) -> None:
        """Ends it."""
        self.child.stop(grace_s=0)


class JavaBroker:
    """A Java broker; restarted on the same folder and ports by `start` after `crash`.

    Args:
        tube: the Java system.
        folder: where it keeps everything.
        broker_id: its number at the master.
        master: the master's host:port, Java's or ours.
        settings: further lines of [broker].
    """

    def __init__(
        self,
        tube: JavaSystem,
        folder: Path,
        broker_id: int,
        master: str,
        *,
        heap_mb: int = 512,
        settings: Iterable[str] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.broker_id = broker_id
        self.host = broker_host(broker_id)
        self.port, self.web_port, metrics_port = free_ports(3)
        self._tube = tube
        self._heap_mb = heap_mb
        self._config = folder / "broker.ini"
        self._config.write_text(f"""[broker]
brokerId={broker_id}
hostName={self.host}
port={self.port}
webPort={self.web_port}
masterAddressList={master}
primaryPath={folder}/data
maxSegmentSize=1073741824
maxIndexSegmentSize=22020096
transferSize=524288
loadMessageStoresInParallel=true
consumerRegTimeoutMs=20000
logClearupDurationMs=180000
logFlushDiskDurMs=10000
logFlushMemDurMs=10000
{chr(10).join(settings)}

[prometheus]
promEnable=false
promHttpPort={metrics_port}
""")
        self.child: Child | None = None

    def add_to(self, web: WebApi) -> None:
        """Makes it known to its master, before its first start."""
        web.add_broker(self.broker_id, self.host, self.port, self.web_port)

    def start(self) -> None:
        """Starts the process; `wait` waits for it."""
        name = f"java-broker-{self.broker_id}"
        command = self._tube.command(
            "Leash", BROKER_MAIN, "-f", str(self._config), heap_mb=self._heap_mb, log="warn"
        )
        self.child = Child(name, command, self.folder)

    def wait(self) -> None:
        """Until its port is open."""
        assert self.child is not None

        def ready() -> bool:
            if "StartupException" in child.log_end():  # its process stays
                raise StartError(child.log_end())
            return listens(self.port, self.host)

        child = self.child
        child.wait_for(ready, START_TIMEOUT_S, "listening port")

    def crash(self) -> None:
        """SIGTERM and a wait: it acknowledges what only its memory holds, so a kill may lose it."""
        assert self.child is not None
        self.child.stop(grace_s=20)

    def stop(self) -> None:
        """Ends it."""
        if self.child is not None:
            self.child.stop(grace_s=0)


def wait_writable(web: WebApi, topics: Iterable[str], timeout_s: float = 90.0) -> float:
    """Waits until all topics take messages; the seconds that it took."""
    start = time.monotonic()
    missing = list(topics)
    while missing:
        missing = [topic for topic in missing if not web.writable(topic)]
        if time.monotonic() - start > timeout_s:
            raise TimeoutError(f"not writable after {timeout_s:.0f} s: {missing}")
        if missing:
            time.sleep(0.5)
    return time.monotonic() - start
