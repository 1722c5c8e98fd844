"""Access control (10): our broker and Java's with one file of accounts, Java's clients and ours."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import coherer
from coherer import Message
from coherer.cli.main import app
from coherer.errors import RefusedError
from tests.interop.peers.driver import DriverError
from tests.interop.peers.mqadmin import COMMANDS, FAILED
from tests.interop.peers.rocket_site import OUR_QUICK, QUICK, Client, Cluster, OurRocket, RocketSite
from tests.interop.peers.rocketmq import JavaRocketBroker, RocketDriver, home_of
from tests.private import write_private

pytestmark = pytest.mark.interop

ACCOUNTS = """\
globalWhiteRemoteAddresses:
- 10.99.99.99
accounts:
- accessKey: operator
  secretKey: operator-secret
  admin: true
- accessKey: writer-1
  secretKey: writer-secret
  defaultTopicPerm: DENY
  topicPerms:
  - open=PUB|SUB
  - closed=DENY
  groupPerms:
  - readers=SUB
"""
OPERATOR = {"access_key": "operator", "secret_key": "operator-secret"}
WRITER = {"access_key": "writer-1", "secret_key": "writer-secret"}


Run = Callable[..., str]


@pytest.fixture(scope="module")
def tools(rocket: RocketSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a line of mqadmin: the account of the tools stands in a file of theirs."""
    folder = tmp_path_factory.mktemp("tools")
    driver = RocketDriver(rocket.java, folder)

    def run(cluster: Cluster, line: str, account: dict[str, str] = OPERATOR) -> str:
        text = "accessKey: {access_key}\nsecretKey: {secret_key}\n".format(**account)
        write_private(home_of(folder) / "conf" / "tools.yml", text)
        client = Client(driver, "admin", {"namesrv": cluster.namesrv})
        said = client("run", arguments=line.format(broker=cluster.broker.address).split())
        client.close()
        return str(said)

    yield run
    driver.stop()


@pytest.fixture(scope="module", params=["java", "ours"])
def cluster(
    rocket: RocketSite,
    tools: Run,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    """For all tests that leave the accounts as they are."""
    folder = tmp_path_factory.mktemp(f"acl-{request.param}")
    with guarded(rocket, tools, request.param, folder) as cluster:
        yield cluster


@pytest.fixture(params=["java", "ours"])
def changed(
    rocket: RocketSite, tools: Run, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Cluster]:
    """For one that changes them: Java's broker may lose the accounts that stay for good."""
    with guarded(rocket, tools, request.param, tmp_path) as cluster:
        yield cluster


@contextmanager
def guarded(rocket: RocketSite, tools: Run, kind: str, folder: Path) -> Iterator[Cluster]:
    """A broker that serves accounts only, with the topics `open` and `closed`."""
    namesrv = rocket.names(kind)
    broker: OurRocket | JavaRocketBroker
    if kind == "java":
        settings = {**QUICK, "aclEnable": "true"}
        broker = JavaRocketBroker(rocket.java, folder, namesrv, settings=settings)
        conf = home_of(folder) / "conf"
    else:
        broker = OurRocket(folder, namesrv=namesrv, **OUR_QUICK, rocketmq_access=True)
        conf = folder / "data" / "conf"
        conf.mkdir(parents=True)
    write_private(conf / "plain_acl.yml", ACCOUNTS)
    broker.start()
    try:
        broker.wait()
        cluster = Cluster(kind, namesrv, broker)
        for topic in ("open", "closed"):
            said = tools(cluster, f"updateTopic -b {{broker}} -t {topic}")
            assert "success" in said, said
        yield cluster
    finally:
        broker.kill()


def test_java_sends_where_it_may(rocket: RocketSite, cluster: Cluster) -> None:
    producer = rocket.client(cluster, "producer", group="java-writers", **WRITER)
    assert producer.send("open", "x")["id"]
    with pytest.raises(DriverError, match="still failed"):
        producer.send("closed", "x")
    producer.close()


@pytest.mark.parametrize(
    "account",
    [
        pytest.param({}, id="without account"),
        pytest.param({"access_key": "writer-1", "secret_key": "wrong-one"}, id="wrong secret"),
        pytest.param({"access_key": "somebody", "secret_key": "wrong-one"}, id="unknown account"),
    ],
)
def test_java_is_refused(rocket: RocketSite, cluster: Cluster, account: dict[str, str]) -> None:
    producer = rocket.client(cluster, "producer", group="strangers", **account)
    with pytest.raises(DriverError, match="still failed"):
        producer.send("open", "x")
    producer.close()


async def test_our_client_signs_as_java_does(rocket: RocketSite, cluster: Cluster) -> None:
    word = uuid.uuid4().hex
    consumer = rocket.client(cluster, "push", group="readers", topics={"open": word}, **WRITER)
    who = {"user": WRITER["access_key"], "password": WRITER["secret_key"]}
    async with coherer.connect(cluster.url, **who) as client, client.producer() as producer:
        await producer.send(Message("open", b"signed", tag=word))
        with pytest.raises(RefusedError, match="No default permission for topic:closed"):
            await producer.send(Message("closed", b"x"))
    assert [one["tag"] for one in consumer.wait_for(1)] == [word]
    consumer.close()
    async with coherer.connect(cluster.url) as client, client.producer() as producer:
        with pytest.raises(RefusedError, match="No accessKey is configured"):
            await producer.send(Message("open", b"x"))


@pytest.mark.parametrize("orderly", [True, False], ids=["locks", "sends back"])
def test_java_consumes_where_it_may(rocket: RocketSite, cluster: Cluster, orderly: bool) -> None:
    """The rules of our broker are stricter than those of Java's, but not for such a consumer."""
    word = uuid.uuid4().hex
    producer = rocket.client(cluster, "producer", group="java-writers", **WRITER)
    consumer = rocket.client(
        cluster, "push", group="readers", topics={"open": word}, orderly=orderly, **WRITER
    )
    producer.send("open", word, tag=word, properties={} if orderly else {"FAIL_TIMES": "1"})
    assert consumer.wait_for(1)[0]["tag"] == word
    assert len(consumer.messages("failed")) == (not orderly)
    consumer.close()
    producer.close()


def test_go_signs_as_java_does(rocket: RocketSite, cluster: Cluster) -> None:
    if not rocket.has("go"):
        pytest.skip("no client in Go")
    producer = rocket.client(cluster, "producer", "go", group="go-writers", **WRITER)
    more = {"tag": "red", "keys": ["k"], "properties": {"n": "zwölf"}}
    assert producer.send("open", "signed", **more)["id"]
    with pytest.raises(DriverError, match="No default permission"):
        producer.send("closed", "x")
    producer.close()


def test_java_ends_transactions_where_it_may(rocket: RocketSite, cluster: Cluster) -> None:
    word = uuid.uuid4().hex
    consumer = rocket.client(cluster, "push", group="readers", topics={"open": word}, **WRITER)
    producer = rocket.client(cluster, "transaction", group="java-payers", **WRITER)
    producer.send("open", "at once", tag=word, properties={"LOCAL": "commit"})
    producer.send("open", "asked", tag=word, properties={"LOCAL": "?", "CHECK": "commit"})
    consumer.wait_for(2)
    assert sorted(consumer.bodies()) == ["asked", "at once"]
    assert len(producer.events) >= 1
    assert {one["event"] for one in producer.events} == {"checked"}
    producer.close()
    consumer.close()


def test_javas_tools_for_accounts(tools: Run, changed: Cluster) -> None:
    for command in COMMANDS:
        said = tools(changed, str(command)) if command.acl else ""
        until = time.monotonic() + 10
        # Java's broker takes a moment to read the file that it has written.
        while command.acl and not re.search(command.shows, said) and time.monotonic() < until:
            said = tools(changed, str(command))
        assert not command.acl or re.search(command.shows, said), f"{command}: {said}"


def test_javas_tools_need_an_administrator(tools: Run, cluster: Cluster) -> None:
    assert not re.search(FAILED, tools(cluster, "updateTopic -b {broker} -t open"))
    said = tools(cluster, "updateTopic -b {broker} -t open", WRITER)
    assert "Need admin permission" in said, said


@pytest.mark.parametrize("kind", ["java", "ours"])
def test_both_read_what_the_other_writes(
    rocket: RocketSite, tools: Run, kind: str, tmp_path: Path
) -> None:
    """`coherer accounts` writes the file of a running broker, and reads what mqadmin wrote."""
    home = home_of(tmp_path) if kind == "java" else tmp_path / "data"

    def accounts(*words: str) -> str:
        words = ("accounts", *words, "--directory", str(home))
        result = CliRunner().invoke(app, list(words), input="secret-of-2\n", catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    file = home / "conf" / "plain_acl.yml"
    with guarded(rocket, tools, kind, tmp_path) as cluster:
        # First, since Java's broker fails with a NullPointerException in the administrator's
        # account once it has read a file that somebody else has changed.
        line = "updateAclConfig -b {broker} -a made-by-java -s secret-of-java -t closed=PUB|SUB"
        said = tools(cluster, line)
        assert "success" in said, said
        file.chmod(0o600)  # Java's broker may leave it readable for others
        found = {one["name"]: one for one in json.loads(accounts("list", "--json"))}
        assert found["made-by-java"]["topics"] == ["closed=PUB|SUB"]
        assert found["writer-1"]["groups"] == ["readers=SUB"]
        accounts("add", "writer-2", "--topic", "open=PUB", "--password-file", "-")
        until = time.monotonic() + 30
        while True:  # until the broker has read the file
            producer = rocket.client(
                cluster, "producer", group="w2", access_key="writer-2", secret_key="secret-of-2"
            )
            try:
                assert producer.send("open", "x")["id"]
                break
            except DriverError:
                assert time.monotonic() < until, "the broker does not know the account"
            finally:
                producer.close()
    content = yaml.safe_load(file.read_bytes())
    names = {one["accessKey"] for one in content["accounts"]}
    assert names == {"operator", "writer-1", "made-by-java", "writer-2"}
    assert content["dataVersion"]


def test_a_pull_that_waits_for_a_removed_account(
    rocket: RocketSite, tools: Run, changed: Cluster
) -> None:
    """Java's broker answers it with the next message; ours refuses it."""
    producer = rocket.client(changed, "producer", group="java-operators", **OPERATOR)
    guest = rocket.client(changed, "push", group="readers", topics={"open": "*"}, **WRITER)
    witness = rocket.client(changed, "push", group="witnesses", topics={"open": "*"}, **OPERATOR)
    producer.send("open", "before")
    guest.wait_for(1)
    assert "success" in tools(changed, "deleteAccessConfig -b {broker} -a writer-1")
    producer.send("open", "after")
    witness.wait_for(2)
    if changed.kind == "java":
        guest.wait_for(2)
        assert guest.bodies() == ["before", "after"]
    else:
        producer.send("open", "later")
        witness.wait_for(3)
        assert guest.bodies() == ["before"]
    for client in (guest, witness, producer):
        client.close()
