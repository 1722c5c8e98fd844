"""One directory, two brokers: what one wrote the other serves, also when the first was killed.

The writer takes messages, delayed ones, transactions, positions, groups and what a consumer could
not use. Then it ends. The other broker is started on its directory, and Java's clients must find
everything there, once, and go on where they were.
"""

from __future__ import annotations

import base64
import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, TypeAlias

import pytest

from coherer._record.layout import decode
from coherer._rules.common.java_json import quote_keys
from coherer._rules.common.offsets import OffsetTable
from coherer._rules.rocketmq.delays import DelayPositions
from coherer._store import Store, StoreOptions
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.session import Session
from tests.interop.peers.rocket_site import (
    Broker,
    Client,
    Cluster,
    OurRocket,
    RocketSite,
    wait_until,
)
from tests.interop.peers.rocketmq import JavaRocketBroker

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SEGMENT_BYTES = 16 * 1024  # so that there are several files
TOPIC, READERS, FAILING, PAYERS = "files", "readers", "failing", "payers"
QUEUES = 4
PLAIN = [f"plain {number}" for number in range(120)]
LARGE = "large " + "x" * 20_000
# Half a minute: a Java consumer says its position after ten seconds first, and the writer has to
# end before anything is due, also on a busy machine.
RETRY_LEVEL = DELAY_LEVEL = 4
DELAY_S = 30.0
COMMITTED_QUEUE, COMMITTED = 2, 7
WAIT_S = 120.0
ENTRY_BYTES = 20  # of a consume queue: log offset, size, code of the tag
Way: TypeAlias = tuple[str, str]
WAYS: list[Way] = [("ours", "stop"), ("ours", "kill"), ("java", "stop"), ("java", "kill")]
"""Who writes, and how it ends."""

# Java's broker writes its files every so often, ten seconds after its start at the earliest.
JAVA = {
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "flushConsumerOffsetInterval": 500,
    "flushDelayOffsetInterval": 500,
}


@dataclass
class Written:
    """What a writer took, and where it is to be found."""

    directory: Path
    writer: str
    end: str
    due_s: float = 0.0
    offsets: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    ends: dict[int, int] = field(default_factory=dict[int, int])


def broker_on(
    site: RocketSite, kind: str, directory: Path, namesrv: str, interval_ms: int
) -> Broker:
    """A broker of a kind on a directory; it asks about half messages at that interval."""
    folder = directory.parent
    checks = {"transactionTimeOut": 1_000, "transactionCheckInterval": interval_ms}
    broker: Broker = (
        JavaRocketBroker(site.java, folder, namesrv, store=directory, settings={**JAVA, **checks})
        if kind == "java"
        else OurRocket(
            folder,
            namesrv=namesrv,
            transaction_timeout_ms=1_000,
            transaction_interval_ms=interval_ms,
            segment_bytes=SEGMENT_BYTES,
        )
    )
    broker.start()
    try:
        broker.wait()
    except BaseException:
        broker.kill()
        raise
    return broker


def end_of(broker: Broker, end: str) -> None:
    """Let a broker close its files, or kill it."""
    if end == "kill" or broker.child is None:
        broker.kill()
    elif isinstance(broker, OurRocket):
        broker.child.stdin.close()  # its order to end
        broker.child.process.wait(30)
        broker.stop()
    else:
        broker.stop()


def written(site: RocketSite, way: Way, namesrv: str, directory: Path) -> Written:
    """The directory of a broker that has ended."""
    writer, end = way
    broker = broker_on(site, writer, directory, namesrv, 600_000)
    try:
        made = Written(directory, writer, end)
        write(site, Cluster("x", namesrv, broker), made)
        end_of(broker, end)
    finally:
        broker.kill()
    assert (directory / "abort").exists() == (end == "kill")
    return made


def write(site: RocketSite, cluster: Cluster, made: Written) -> None:
    """Have the broker take something of everything."""
    tools = site.client(cluster, "admin")
    where = ["-b", cluster.broker.address]
    tools(
        "run",
        arguments=["updateTopic", *where, "-t", TOPIC, "-r", str(QUEUES), "-w", str(QUEUES)],
    )
    tools("run", arguments=["updateSubGroup", *where, "-g", READERS, "-r", "5"])
    producer = site.client(cluster, "producer", group="writers")
    for number, body in enumerate(PLAIN):
        send(producer, made, body, tag="ba"[number % 2], keys=[f"key{number}", "all"])
    send(producer, made, LARGE, properties={"colour": "röt"}, flag=7)
    producer(
        "batch",
        messages=[
            {"topic": TOPIC, "body": b64(f"batch {number}"), "keys": [f"b{number}"]}
            for number in range(10)
        ],
    )
    producer.send(TOPIC, "delayed, delivered", delay_level=1)
    transact(site, cluster)
    commit_some(site, cluster)
    saved(made, lambda delays, _: delays[1] == 1)
    saved(made, lambda _, offsets: at(offsets, READERS, TOPIC, COMMITTED_QUEUE) == COMMITTED)
    failed = fail_one(site, cluster, producer)
    saved(made, lambda _, offsets: at(offsets, FAILING, "failures", failed) == 1)
    made.due_s = time.time() + DELAY_S
    for number in range(3):
        producer.send(TOPIC, f"delayed {number}", delay_level=DELAY_LEVEL)
    # What Java has to index again it delivers after one second: it loads its delays too late. (The
    # level has the message that was sent back, too.)
    wait_until(lambda: indexed(made, "SCHEDULE_TOPIC_XXXX", DELAY_LEVEL - 1) == 4, WAIT_S)
    producer.close()
    tools.close()


def send(producer: Client, made: Written, body: str, **more: object) -> None:
    queue = len(made.offsets) % QUEUES
    result = producer.send(TOPIC, body, broker="broker-a", queue=queue, **more)
    assert result["status"] == "SEND_OK"
    made.offsets[body] = queue, result["offset"]


def transact(site: RocketSite, cluster: Cluster) -> None:
    transactions = site.client(cluster, "transaction", group=PAYERS)
    for body, local in (("committed", "commit"), ("rolled back", "rollback"), ("open", "unknown")):
        properties = {"LOCAL": local, "CHECK": "commit"}
        transactions.send(TOPIC, body, properties=properties)
    transactions.close()


def fail_one(site: RocketSite, cluster: Cluster, producer: Client) -> int:
    """A consumer that cannot use a message: it comes back to the group when the delay is over.

    Gives the queue that it was in.
    """
    sent = producer.send("failures", "failed once", properties={"FAIL_TIMES": "1"})
    consumer = site.client(
        cluster, "push", group=FAILING, topics={"failures": "*"}, retry_level=RETRY_LEVEL
    )
    consumer.wait_for(1, "failed", WAIT_S)
    wait_until(lambda: position(cluster.broker, FAILING, sent) == sent["offset"] + 1, WAIT_S)
    consumer.close()
    return int(sent["queue"])


def position(broker: Broker, group: str, queue: dict[str, Any]) -> int:
    """Where a group is in a queue, as the broker says it; -1 while it says nothing."""
    fields = {"consumerGroup": group, "topic": queue["topic"], "queueId": str(queue["queue"])}
    return int(ask(broker, RequestCode.QUERY_CONSUMER_OFFSET, fields).fields.get("offset", -1))


def ask(broker: Broker, code: int, fields: dict[str, str]) -> Command:
    """Ask a broker something by hand."""
    session = Session()
    _, frame = session.request(code, fields)
    with socket.create_connection(("127.0.0.1", broker.port), timeout=5) as connection:
        connection.sendall(frame)
        while not (answers := session.receive(connection.recv(65_536))):
            continue
    return answers[0]


def commit_some(site: RocketSite, cluster: Cluster) -> None:
    """A consumer that has read some of a queue."""
    queue = {"topic": TOPIC, "broker": "broker-a", "queue": COMMITTED_QUEUE}
    reader = site.client(cluster, "pull", group=READERS, assign=[queue], batch=COMMITTED)
    wait_until(lambda: reader("poll"), WAIT_S)
    reader("seek", **{**queue, "offset": COMMITTED})
    reader("commit")
    wait_until(lambda: reader("committed", **queue) == COMMITTED, WAIT_S)
    reader.close()


def saved(made: Written, holds: Callable[[DelayPositions, OffsetTable], bool]) -> None:
    """Who is killed repeats nothing of what is in the files: wait until something is."""
    config = made.directory / "config"

    def looks() -> bool:
        delays = DelayPositions.load(
            read_file(config / "delayOffset.json") or b'{"offsetTable":{}}'
        )
        return holds(
            delays,
            OffsetTable.load(read_file(config / "consumerOffset.json") or b'{"offsetTable":{}}'),
        )

    if made.end == "kill":
        wait_until(looks, WAIT_S)


def indexed(made: Written, topic: str, queue: int) -> int:
    """How many messages the files of a consume queue list."""
    files = (made.directory / "consumequeue" / topic / str(queue)).glob("*")
    entries = b"".join(read_file(path) for path in files)
    sizes = (entries[at + 8 : at + 12] for at in range(0, len(entries), ENTRY_BYTES))
    return sum(any(size) for size in sizes)


def at(offsets: OffsetTable, group: str, topic: str, queue: int) -> int:
    found = offsets.find(group, topic, queue)
    return -1 if found is None else found.offset


def read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # also for a moment while Java writes it anew
        return b""


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def text_of(message: dict[str, Any]) -> str:
    return base64.b64decode(message["body"]).decode()


@dataclass
class Reading:
    """The other broker on the directory, and what Java's clients found there."""

    written: Written
    cluster: Cluster
    tools: Client
    fresh: Client
    failing: Client
    transactions: Client


EVERYTHING = Counter(
    [
        *PLAIN,
        LARGE,
        *[f"batch {number}" for number in range(10)],
        "delayed, delivered",
        "committed",
        "open",
        *[f"delayed {number}" for number in range(3)],
    ]
)


@pytest.fixture(scope="module")
def readings(
    rocket: RocketSite, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Way, Future[Reading]]]:
    """All that are wanted, at the same time: most of it is waiting for what is late on purpose."""
    rocket.driver()
    specs = [getattr(item, "callspec", None) for item in request.session.items]
    wanted = {spec.params["reading"] for spec in specs if spec and "reading" in spec.params}
    found: dict[Way, Future[Reading]] = {way: Future() for way in wanted}
    over = Event()

    def read(way: Way) -> None:
        try:
            directory = tmp_path_factory.mktemp("-".join(way)) / "data"
            namesrv = rocket.names(way[0])
            made = written(rocket, way, namesrv, directory)
            with read_by_the_other(rocket, made, namesrv) as reading:
                found[way].set_result(reading)
                over.wait()
        except BaseException as failure:
            if found[way].done():  # what its tests see is good, but not its end
                raise
            found[way].set_exception(failure)

    with ThreadPoolExecutor(len(wanted)) as pool:
        ends = [pool.submit(read, way) for way in wanted]
        try:
            yield found
        finally:
            over.set()
    for end in ends:
        end.result()


@pytest.fixture(scope="module", params=WAYS, ids="-".join)
def reading(readings: dict[Way, Future[Reading]], request: pytest.FixtureRequest) -> Reading:
    """What Java's clients found after a writer that ended so."""
    return readings[request.param].result()


@contextmanager
def read_by_the_other(site: RocketSite, written: Written, namesrv: str) -> Iterator[Reading]:
    """Waits until everything that was pending has come."""
    other = {"ours": "java", "java": "ours"}[written.writer]
    broker = broker_on(site, other, written.directory, namesrv, 1_000)
    cluster = Cluster("x", namesrv, broker)
    clients: list[Client] = []

    def client(kind: str, **parameters: object) -> Client:
        clients.append(site.client(cluster, kind, "java", **parameters))
        return clients[-1]

    try:
        found = Reading(
            written,
            cluster,
            client("admin"),
            client("push", group="fresh", topics={TOPIC: "*"}),
            client("push", group=FAILING, topics={"failures": "*"}),
            client("transaction", group=PAYERS),
        )
        found.fresh.wait_for(EVERYTHING.total(), timeout_s=WAIT_S)
        found.failing.wait_for(1, timeout_s=WAIT_S)
        yield found
        for one in clients:
            one.close()
        end_of(broker, "stop")
        prove(written)
    finally:
        broker.kill()


def prove(written: Written) -> None:
    """After both, the files hold together."""
    options = StoreOptions(segment_bytes=SEGMENT_BYTES)
    with Store.open(written.directory, options, now_ms=lambda: time.time_ns() // 10**6) as store:
        assert store.recovery.clean
        assert (store.recovery.damage, store.recovery.notes) == ((), ())
        assert store.verify() == []


def test_every_message_is_served_once(reading: Reading) -> None:
    found = Counter(body for body in reading.fresh.bodies() if not body.startswith("later "))
    assert found == EVERYTHING
    places = {text_of(one): (one["queue"], one["offset"]) for one in reading.fresh.messages()}
    assert {body: places[body] for body in reading.written.offsets} == reading.written.offsets


def test_messages_are_as_they_were_sent(reading: Reading) -> None:
    (large,) = [one for one in reading.fresh.messages() if text_of(one) == LARGE]
    assert large["sys_flag"] & 1
    assert large["flag"] == 7
    assert large["properties"]["colour"] == "röt"
    tags = {text_of(one): one["tag"] for one in reading.fresh.messages()}
    assert [tags[body] for body in PLAIN[:4]] == ["b", "a", "b", "a"]


def test_delayed_messages_come_when_they_are_due(reading: Reading) -> None:
    late = [one for one in reading.fresh.messages() if text_of(one).startswith("delayed ")]
    assert len(late) == 3
    for one in late:
        assert one["stored_ms"] >= reading.written.due_s * 1000 - 500


def test_the_open_transaction_is_asked_about_and_only_that(reading: Reading) -> None:
    asked = [one for one in reading.transactions.events if one["event"] == "checked"]
    assert {text_of(one["message"]) for one in asked} == {"open"}


def test_what_a_consumer_could_not_use_comes_back_to_it(reading: Reading) -> None:
    (one,) = reading.failing.messages()
    assert text_of(one) == "failed once"
    assert one["attempt"] == 1


def test_a_group_goes_on_where_it_was(rocket: RocketSite, reading: Reading) -> None:
    queue = {"topic": TOPIC, "broker": "broker-a", "queue": COMMITTED_QUEUE}
    reader = rocket.client(reading.cluster, "pull", group=READERS, assign=[queue], batch=1)
    assert reader("committed", **queue) == COMMITTED
    found: list[list[dict[str, Any]]] = [[]]

    def polled() -> bool:
        found.append(reader("poll"))
        return bool(found[-1])

    wait_until(polled, WAIT_S)
    assert found[-1][0]["offset"] == COMMITTED
    reader.close()


def test_topics_and_groups_are_known(reading: Reading) -> None:
    config = reading.written.directory / "config"
    topics = json.loads(quote_keys((config / "topics.json").read_bytes()))
    groups = json.loads(quote_keys((config / "subscriptionGroup.json").read_bytes()))
    topic = topics["topicConfigTable"][TOPIC]
    assert (topic["readQueueNums"], topic["writeQueueNums"], topic["perm"]) == (QUEUES, QUEUES, 6)
    assert groups["subscriptionGroupTable"][READERS]["retryMaxTimes"] == 5
    route = reading.tools("run", arguments=["topicRoute", "-t", TOPIC])
    assert f'"readQueueNums":{QUEUES}' in route.replace(" ", "")


@pytest.mark.parametrize("key", ["key7", "key119", "b3"])
def test_messages_are_found_by_key(reading: Reading, key: str) -> None:
    said = reading.tools("run", arguments=["queryMsgByKey", "-t", TOPIC, "-k", key])
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) == 1


def test_messages_are_found_by_their_unique_id(reading: Reading) -> None:
    one = next(one for one in reading.fresh.messages() if text_of(one) == PLAIN[5])
    # Asked by hand: Java's command for it remembers the broker that it saw first in its process.
    fields = {
        "topic": TOPIC,
        "key": one["id"],
        "maxNum": "32",
        "beginTimestamp": "0",
        "endTimestamp": str(2**63 - 1),
        "_UNIQUE_KEY_QUERY": "true",
    }
    answer = ask(reading.cluster.broker, RequestCode.QUERY_MESSAGE, fields)
    assert (answer.code, decode(answer.body).body) == (0, PLAIN[5].encode())


def test_sending_goes_on_behind_what_is_there(rocket: RocketSite, reading: Reading) -> None:
    producer = rocket.client(reading.cluster, "producer", group="writers")
    last: Counter[int] = Counter()
    for one in reading.fresh.messages():
        last[one["queue"]] = max(last[one["queue"]], one["offset"])
    before = len(reading.fresh.messages())
    for queue in range(QUEUES):
        result = producer.send(TOPIC, f"later {queue}", broker="broker-a", queue=queue)
        assert (result["status"], result["offset"]) == ("SEND_OK", last[queue] + 1)
    reading.fresh.wait_for(before + QUEUES, timeout_s=WAIT_S)
    producer.close()
