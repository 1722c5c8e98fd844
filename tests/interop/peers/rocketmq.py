"""The Java name server, broker and clients of RocketMQ 4.9.3.

```python
rocket = prepare("rocketmq")
names = JavaNameServer(rocket, folder / "namesrv")
names.wait()
broker = JavaRocketBroker(rocket, folder / "broker-a", names.address)
broker.start()
broker.wait()
driver = RocketDriver(rocket, folder)
name, opened = driver.open("producer", namesrv=names.address)
opened.result(20)
driver.call(name, "send", topic="t", body=base64).result(20)
```

Whoever makes one stops it, whatever happens (`stop`); a child also ends when this process does.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path

from .cache import JavaSystem
from .driver import Driver
from .process import Child, free_ports, listens

HOST = "127.0.0.1"
START_TIMEOUT_S = 120.0
PEM = Path(__file__).parents[2] / "net" / "localhost.pem"
"""A key with its certificate."""
NAMESRV_MAIN = "org.apache.rocketmq.namesrv.NamesrvStartup"
BROKER_MAIN = "org.apache.rocketmq.broker.BrokerStartup"
PROXY_MAIN = "org.apache.rocketmq.proxy.ProxyStartup"
GET_ROUTE = 105
SUCCESS = b'"code":0'
PATIENT = {"waitTimeMillsInSendQueue": 20_000, "osPageCacheBusyTimeOutMills": 20_000}
"""Settings for a busy machine: by default a broker refuses what has waited for 0.2 s, and Java's
producers do not send it again."""

LOGBACK = """<configuration>
  <appender name="err" class="ch.qos.logback.core.ConsoleAppender">
    <target>System.err</target>
    <encoder><pattern>%d{HH:mm:ss.SSS} %-5p %c{1} %m%n</pattern></encoder>
  </appender>
  <root level="warn"><appender-ref ref="err"/></root>
</configuration>
"""


def home_of(folder: Path) -> Path:
    """A ROCKETMQ_HOME with the files without which nothing starts."""
    home = folder / "home"
    (home / "conf").mkdir(parents=True, exist_ok=True)
    for name in ("logback_namesrv.xml", "logback_broker.xml", "logback_tools.xml"):
        (home / "conf" / name).write_text(LOGBACK)
    return home


def flags_of(folder: Path) -> list[str]:
    """JVM flags that keep all files in the folder, and give servers a certificate.

    Without one, each makes an RSA key when it starts: three quarters of a start's processor time.
    """
    return [
        f"-Duser.home={folder}",
        f"-Drocketmq.home.dir={home_of(folder)}",
        "-Dtls.test.mode.enable=false",
        f"-Dtls.server.certPath={PEM}",
        f"-Dtls.server.keyPath={PEM}",
    ]


def broker_port() -> int:
    """A port whose neighbours (-2 for urgent clients, +1 for replication) are free as well."""
    (port,) = free_ports(1, and_beside=(-2, 1))
    return port


class JavaNameServer:
    """A Java name server.

    Args:
        rocket: the Java system.
        folder: where it keeps everything.
        settings: further lines of its configuration.
    """

    def __init__(
        self, rocket: JavaSystem, folder: Path, settings: Mapping[str, object] | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (self.port,) = free_ports(1)
        self.address = f"{HOST}:{self.port}"
        config = folder / "namesrv.conf"
        lines = {
            "listenPort": self.port,
            "kvConfigPath": folder / "kvConfig.json",
            **(settings or {}),
        }
        config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        command = rocket.command(
            "Leash", NAMESRV_MAIN, "-c", str(config), heap_mb=256, flags=flags_of(folder)
        )
        self.child = Child("java-namesrv", command, folder)

    def wait(self) -> None:
        """Until its port is open."""
        self.child.wait_for(lambda: listens(self.port), START_TIMEOUT_S, "listening port")

    def stop(self) -> None:
        """Ends it."""
        self.child.stop(grace_s=0)


class JavaRocketBroker:
    """A Java broker; started again on the same files and ports by `start` after `stop` or `kill`.

    Args:
        rocket: the Java system.
        folder: where it keeps everything, the store in `folder/store`.
        namesrv: host:port of name servers, Java's or ours, separated by `;`.
        name: its brokerName.
        broker_id: 0 for a master.
        store: the directory of its files, when another.
        settings: further lines of broker.conf, by Java's names.
    """

    def __init__(
        self,
        rocket: JavaSystem,
        folder: Path,
        namesrv: str,
        *,
        name: str = "broker-a",
        broker_id: int = 0,
        store: Path | None = None,
        heap_mb: int = 512,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.name = name
        self.namesrv = namesrv
        self.port = broker_port()
        self.address = f"{HOST}:{self.port}"
        self.store = store or folder / "store"
        self.child: Child | None = None
        self._broker_id = broker_id
        self._rocket = rocket
        self._heap_mb = heap_mb
        self._config = folder / "broker.conf"
        self.configure(settings or {})

    def configure(self, settings: Mapping[str, object]) -> None:
        """Writes broker.conf anew; for the next start."""
        lines = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": self.name,
            "brokerId": self._broker_id,
            "brokerIP1": HOST,
            "brokerIP2": HOST,
            "listenPort": self.port,
            "haListenPort": self.port + 1,
            "namesrvAddr": self.namesrv,
            "storePathRootDir": self.store,
            "storePathCommitLog": self.store / "commitlog",
            "brokerRole": "ASYNC_MASTER" if self._broker_id == 0 else "SLAVE",
            "flushDiskType": "ASYNC_FLUSH",
            "enablePropertyFilter": "true",
            "mappedFileSizeCommitLog": 64 * 1024 * 1024,
            "transactionTimeOut": 1_000,
            "transactionCheckInterval": 1_000,
            # 5.x notes the end of a transaction so late (3 s by default), and asks until then: it
            # carries out the second answer, too.
            "transactionOpBatchInterval": 100,
            "diskMaxUsedSpaceRatio": 95,
            **PATIENT,
            **settings,
        }
        self._config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    def start(self) -> None:
        """Starts the process; `wait` waits for it."""
        flags = [
            *flags_of(self.folder),
            # Disks of test machines may be full by its standards.
            "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
            "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.98",
            "-XX:MaxDirectMemorySize=512m",
        ]
        command = self._rocket.command(
            "Leash", BROKER_MAIN, "-c", str(self._config), heap_mb=self._heap_mb, flags=flags
        )
        self.child = Child(f"java-{self.name}-{self._broker_id}", command, self.folder)

    def wait(self) -> None:
        """Until a name server knows it: clients can send then."""
        assert self.child is not None
        names = self.namesrv.split(";")[0]
        self.child.wait_for(
            lambda: listens(self.port) and has_route(names, self.name),
            START_TIMEOUT_S,
            "route at its name server",
        )

    def stop(self) -> None:
        """SIGTERM and a wait: it closes its files."""
        if self.child is not None:
            self.child.stop(grace_s=20)
            self.child = None

    def kill(self) -> None:
        """SIGKILL."""
        if self.child is not None:
            self.child.stop(grace_s=0)
            self.child = None


class JavaProxy:
    """RocketMQ 5's Proxy in cluster mode: the only mode that serves the remoting protocol.

    Args:
        rocket: the Java system.
        folder: where it keeps everything.
        namesrv: host:port of the name server of the brokers behind it.
        broker: the name of one of these brokers.
    """

    def __init__(self, rocket: JavaSystem, folder: Path, namesrv: str, broker: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port, grpc_port = free_ports(2)
        self.address = f"{HOST}:{self.port}"
        self._broker = broker
        config = folder / "proxy.json"
        settings = {
            "rocketMQClusterName": "DefaultCluster",
            "proxyMode": "cluster",
            "namesrvAddr": namesrv,
            "localServeAddr": HOST,
            "remotingAccessAddr": HOST,
            "remotingListenPort": self.port,
            "grpcServerPort": grpc_port,
            # How often it tells brokers of the producers whose transactions they may check.
            "transactionHeartbeatPeriodSecond": 1,
            # How long it believes a topic to be missing.
            "topicRouteServiceCacheRefreshSeconds": 1,
        }
        config.write_text(json.dumps(settings))
        command = rocket.command(
            "Leash", PROXY_MAIN, "-pc", str(config), heap_mb=512, flags=flags_of(folder)
        )
        self.child = Child("java-proxy", command, folder)

    def wait(self) -> None:
        """Until it gives a route."""
        self.child.wait_for(
            lambda: listens(self.port) and has_route(self.address, self._broker),
            START_TIMEOUT_S,
            "route",
        )

    def stop(self) -> None:
        """Ends it."""
        self.child.stop(grace_s=0)


class RocketDriver(Driver):
    """A JVM with Java clients of RocketMQ: producer, transaction, push, pull, admin.

    Args:
        rocket: the Java system.
        folder: of its log and files.
        name: for the log.
        heap_mb: its memory.
        rebalance_ms: how often consumers rebalance by themselves; 20,000 in Java.
    """

    def __init__(
        self,
        rocket: JavaSystem,
        folder: Path,
        name: str = "rocket-driver",
        heap_mb: int = 512,
        rebalance_ms: int = 1_000,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        flags = [
            *flags_of(folder),
            f"-Drocketmq.client.logRoot={folder}",
            f"-Drocketmq.client.localOffsetStoreDir={folder / 'offsets'}",
            f"-Drocketmq.client.rebalance.waitInterval={rebalance_ms}",
        ]
        command = rocket.command("Driver", heap_mb=heap_mb, log="warn", flags=flags)
        super().__init__(name, command, folder)


def has_route(namesrv: str, topic: str) -> bool:
    """Whether a name server knows a topic; every broker has one of its own name."""
    header = (
        b'{"code":%d,"extFields":{"topic":"%s"},"flag":0,"language":"OTHER","opaque":1,'
        b'"version":399}' % (GET_ROUTE, topic.encode())
    )
    frame = (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    host, _, port = namesrv.partition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=2) as connection:
            connection.sendall(frame)
            return SUCCESS in connection.recv(65_536)
    except OSError:
        return False
