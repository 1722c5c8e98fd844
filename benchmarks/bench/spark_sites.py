"""The brokers of the comparison with Kafka, their messages, and the environment of Spark."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import random
import shutil
import subprocess
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import coherer
from bench.sites import JAVA_PULLS
from bench.spark_cases import JAVA_ROCKETMQ, KAFKA, NODE, Topic
from tests.interop.peers.cache import JavaSystem, cache_folder, jars_of, prepare, run
from tests.interop.peers.driver import Driver
from tests.interop.peers.java import HOST
from tests.interop.peers.ours import start_node
from tests.interop.peers.process import Child, free_ports, listens
from tests.interop.peers.rocketmq import JavaNameServer, JavaRocketBroker, RocketDriver

SPARK = "4.2.0"
"""The newest version whose Kafka source was on Maven Central."""
REQUIREMENTS = (f"pyspark=={SPARK}", "uvloop")
BENCHMARKS = Path(__file__).parent.parent
PACKAGES = ("coherer", "pyspark_tubemq", "pyspark_rocketmq")
INSTALL_TIMEOUT_S = 600
START_TIMEOUT_S = 60.0
LOAD_TIMEOUT_S = 300.0
HEAP_MB = 1024
LINES = 2_000
SEED = 11

KAFKA_SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
"""
EACH_ITS_PARTITION = "batch.size=1"
"""At 1,000 messages a second Kafka's producer would fill one partition for 16 KB."""


def spark_python(say: Callable[[str], None]) -> Path:
    """The Python of an environment with PySpark and what `coherer[spark]` needs.

    Raises:
        UnavailableError: the packages cannot be had.
    """
    every = [one.partition(";") for one in importlib.metadata.requires("coherer") or []]
    needed = [name for name, _, where in every if "extra" not in where or "'arrow'" in where]
    requirements = sorted({*REQUIREMENTS, *needed})
    digest = hashlib.sha256(" ".join(requirements).encode()).hexdigest()[:12]
    environment = cache_folder() / f"pyspark-{SPARK}-py{sys.version_info.minor}-{digest}"
    python = environment / "bin" / "python"
    if not (environment / "complete").exists():
        say(f"pip installs PySpark {SPARK} into {environment}")
        shutil.rmtree(environment, ignore_errors=True)
        run([sys.executable, "-m", "venv", str(environment)], INSTALL_TIMEOUT_S)
        run([str(python), "-m", "pip", "install", "-q", *requirements], INSTALL_TIMEOUT_S)
        (environment / "complete").touch()
    return python


def start_spark(python: Path, jars: Path | None, folder: Path) -> Driver:
    """A process with a Spark session, and the `coherer` of this process."""
    links = folder / "packages"
    links.mkdir()
    for name in PACKAGES:
        (links / name).symlink_to(Path(coherer.__file__).parents[1] / name)
    env = {"PYTHONPATH": os.pathsep.join([str(links), str(BENCHMARKS)])}
    files = ",".join(map(str, sorted(jars.glob("*.jar")))) if jars else ""
    command = [str(python), "-m", "bench.spark_main", files, str(folder)]
    return Driver("spark", command, folder, env)


def payloads(kind: str, folder: Path) -> Path:
    """A file with a message in each line.

    Args:
        kind: `1k`, `100b` or `mixed` (1,000 to 1,300) characters, or `json` (250 bytes).
        folder: of the file.
    """
    file = folder / f"{kind}.txt"
    if not file.exists():
        chance = random.Random(SEED)
        make = {
            "1k": lambda: _text(chance, 1024),
            "100b": lambda: _text(chance, 100),
            "mixed": lambda: _text(chance, chance.randint(1_000, 1_300)),
        }
        line = make.get(kind, lambda: _event(chance, 250))
        file.write_text("\n".join(line() for _ in range(LINES)), "ascii")
    return file


def _text(chance: random.Random, size: int) -> str:
    return "".join(chance.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=size))


def _event(chance: random.Random, size: int) -> str:
    minute, second = chance.randrange(60), chance.randrange(60)
    event = {
        "page": f"/page/{chance.randrange(50)}",
        "user": f"user-{chance.randrange(10_000)}",
        "at": f"2026-01-01T12:{minute:02}:{second:02}.000Z",
        "ms": chance.randrange(1_000),
        "agent": "",
    }
    event["agent"] = _text(chance, size - len(json.dumps(event)))
    return json.dumps(event)


class Broker(ABC):
    """A broker that keeps the same messages as the others.

    Args:
        folder: for data and logs.
        say: prints progress.

    Attributes:
        pids: its processes.
        store: the folder of its files, in RocketMQ's format.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        folder.mkdir()
        self.folder = folder
        self.say = say
        self.stack = contextlib.ExitStack()
        self.pids: list[int] = []
        self.store: Path | None = None

    @abstractmethod
    def start(self, topics: Iterable[Topic]) -> None:
        """Starts it, and creates the topics."""

    @abstractmethod
    def access(self, protocol: str) -> dict[str, str]:
        """The options that say where it is."""

    @abstractmethod
    def name(self, topic: Topic, protocol: str) -> str:
        """The topic's name."""

    @abstractmethod
    def sender(self, topic: Topic, protocol: str, count: int, rate: int = 0) -> Child:
        """A process that sends messages, at a rate per second if it is not 0."""

    def stop(self) -> None:
        """Ends it."""
        self.stack.close()

    def send(self, topic: Topic, protocol: str, count: int) -> None:
        """Sends messages, and waits."""
        _finish(self.sender(topic, protocol, count))

    @contextlib.contextmanager
    def feed(self, topic: Topic, protocol: str, rate: int, seconds: float) -> Iterator[None]:
        """Sends at a rate per second during the block, which lasts so long at most."""
        child = self.sender(topic, protocol, int(rate * seconds), rate)
        try:
            yield
        finally:
            child.stop(grace_s=0)

    def _payloads(self, topic: Topic) -> str:
        return str(payloads(topic.payload, self.folder.parent))


class KafkaBroker(Broker):
    """A KRaft node on loopback."""

    _java: JavaSystem
    _address: str

    def start(self, topics: Iterable[Topic]) -> None:
        """Starts it, and creates the topics."""
        self._java = prepare("kafka", self.say)
        port, controller = free_ports(2)
        self._address = f"{HOST}:{port}"
        config = self.folder / "server.properties"
        settings = {"host": HOST, "port": port, "controller": controller, "folder": self.folder}
        config.write_text(KAFKA_SETTINGS.format(**settings))
        (self.folder / "log4j.properties").write_text("log4j.rootLogger=OFF\n")
        cluster = uuid.UUID(int=SEED).hex[:22]
        self._tool("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config))
        child = self._child("kafka", "kafka.Kafka", str(config))
        self.stack.callback(child.stop)
        child.wait_for(lambda: listens(port), START_TIMEOUT_S, "listening port")
        self.pids = [child.pid]
        made = [self._create(topic) for topic in topics]
        for one in made:
            _finish(one)

    def access(self, _protocol: str) -> dict[str, str]:
        """The options that say where it is."""
        return {"kafka.bootstrap.servers": self._address}

    def name(self, topic: Topic, _protocol: str) -> str:
        """The topic's name."""
        return topic.name

    def sender(self, topic: Topic, _protocol: str, count: int, rate: int = 0) -> Child:
        """A process that sends messages, at a rate per second if it is not 0."""
        return self._child(
            f"send-{topic.name}",
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic.name, "--num-records", str(count)),
            *("--payload-file", self._payloads(topic), "--throughput", str(rate or -1)),
            *("--producer-props", f"bootstrap.servers={self._address}"),
            *([EACH_ITS_PARTITION] if rate else []),
        )

    def _create(self, topic: Topic) -> Child:
        return self._child(
            f"create-{topic.name}",
            "org.apache.kafka.tools.TopicCommand",
            *("--create", "--topic", topic.name, "--partitions", str(topic.partitions)),
            *("--bootstrap-server", self._address),
        )

    def _tool(self, main: str, *args: str) -> None:
        _finish(self._child(main.rpartition(".")[2], main, *args))

    def _child(self, name: str, main: str, *args: str) -> Child:
        flags = [f"-Dlog4j.configuration=file:{self.folder / 'log4j.properties'}"]
        command = self._java.command("Leash", main, *args, heap_mb=HEAP_MB, flags=flags)
        return Child(name, command, self.folder)


class CohererSender(Broker):
    """A broker to which Coherer's client sends; the protocols have topics of their own."""

    def name(self, topic: Topic, protocol: str) -> str:
        """The topic's name."""
        return f"{topic.name}-{protocol}"

    def sender(self, topic: Topic, protocol: str, count: int, rate: int = 0) -> Child:
        """A process that sends messages, at a rate per second if it is not 0."""
        name = self.name(topic, protocol)
        command = [sys.executable, str(BENCHMARKS / "bench" / "spark_load_main.py")]
        url = self.access("rocketmq" if topic.crossed else protocol)["url"]
        command += [url, name, self._payloads(topic), str(count), str(rate)]
        return Child(f"send-{name}", [*command, *["numbered"] * topic.crossed], self.folder)


class NodeBroker(CohererSender):
    """Coherer's node, with both protocols."""

    _urls: dict[str, str]

    def start(self, topics: Iterable[Topic]) -> None:
        """Starts it, and creates the topics."""
        master, names = free_ports(2)
        self._urls = {
            "tubemq": f"tubemq://{HOST}:{master}",
            "rocketmq": f"rocketmq://{HOST}:{names}",
        }
        child = start_node(
            "node",
            self.folder,
            HOST,
            admin_port=None,
            master_port=master,
            broker_port=0,
            namesrv_port=names,
            rocketmq_port=0,
            topics={
                self.name(topic, protocol): topic.partitions
                for topic in topics
                for protocol in self._urls
            },
        )
        self.stack.callback(child.stop)
        child.wait_for(
            lambda: listens(master) and listens(names), START_TIMEOUT_S, "listening ports"
        )
        self.pids = [child.pid]
        self.store = self.folder / "data"

    def access(self, protocol: str) -> dict[str, str]:
        """The options that say where it is."""
        return {"url": self._urls[protocol]}


class JavaRocketMQBroker(CohererSender):
    """Java's RocketMQ."""

    _address: str

    def start(self, topics: Iterable[Topic]) -> None:
        """Starts it, and creates the topics."""
        java = prepare("rocketmq", self.say)
        names = JavaNameServer(java, self.folder / "names")
        self.stack.callback(names.stop)
        names.wait()
        folder = self.folder / "broker"
        broker = JavaRocketBroker(java, folder, names.address, heap_mb=HEAP_MB, settings=JAVA_PULLS)
        self.stack.callback(broker.kill)
        broker.start()
        broker.wait()
        assert broker.child is not None
        self.pids = [broker.child.pid]
        self._address = names.address
        driver = RocketDriver(java, self.folder / "admin", "java-admin")
        try:
            admin, opened = driver.open("admin", namesrv=names.address)
            opened.result(START_TIMEOUT_S)
            for topic in topics:
                queues = ["-r", str(topic.partitions), "-w", str(topic.partitions)]
                command = ["updateTopic", "-c", "DefaultCluster", *queues]
                command += ["-t", self.name(topic, "rocketmq")]
                driver.call(admin, "run", arguments=command).result(START_TIMEOUT_S)
        finally:
            driver.stop()

    def access(self, _protocol: str) -> dict[str, str]:
        """The options that say where it is."""
        return {"url": f"rocketmq://{self._address}"}


BROKERS: dict[str, type[Broker]] = {
    KAFKA: KafkaBroker,
    NODE: NodeBroker,
    JAVA_ROCKETMQ: JavaRocketMQBroker,
}


def kafka_jars(say: Callable[[str], None]) -> Path:
    """The jars of Spark's Kafka source.

    Raises:
        UnavailableError: they cannot be had.
    """
    return jars_of("spark-kafka", say)


def _finish(child: Child) -> None:
    """Waits for a process to end.

    Raises:
        RuntimeError: it failed.
    """
    try:
        if child.process.wait(LOAD_TIMEOUT_S):
            raise RuntimeError(f"{child.name} failed: {child.log_end()}")
    except subprocess.TimeoutExpired as late:
        raise RuntimeError(f"{child.name} did not end: {child.log_end()}") from late
    finally:
        child.stop(grace_s=0)
