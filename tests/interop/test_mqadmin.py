"""Java's tools against our servers, and against Java's, by one table of commands."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.interop.peers.mqadmin import COMMANDS, FAILED, NOT_RUN, Command
from tests.interop.peers.rocket_site import Client, RocketSite, wait_until

pytestmark = pytest.mark.interop


@dataclass
class Tools:
    """The tools with what they are about.

    Args:
        run: runs a line.
        names: what the table has in braces.
    """

    run: Client
    names: dict[str, str]

    def says(self, command: Command) -> str:
        """What a command prints."""
        words = [word.format(**self.names) for word in [command.name, *command.arguments.split()]]
        return str(self.run("run", arguments=words))

    def shows(self, command: Command) -> str:
        """The pattern that it is to be found in it."""
        escaped = {name: re.escape(value) for name, value in self.names.items()}
        return command.shows.format(**escaped)


@pytest.fixture(scope="module", params=["java", "ours"])
def tools(
    rocket: RocketSite, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tools]:
    """A cluster with a topic, a producer, and a consumer that has read everything."""
    cluster = rocket.cluster(request.param)
    word = uuid.uuid4().hex[:8]
    topic, group, producers = f"adm{word}", f"readers{word}", f"writers{word}"
    # A JVM of its own: some commands keep their clients in static places.
    own = rocket.new_driver("java")

    def client(kind: str, **parameters: object) -> Client:
        return Client(own, kind, {"namesrv": cluster.namesrv, **parameters})

    admin = client("admin")
    queues = ["-r", "4", "-w", "4"]
    admin("run", arguments=["updateTopic", "-b", cluster.broker.address, "-t", topic, *queues])
    producer = client("producer", group=producers, trace=True)
    sent = []
    for number in range(8):
        queue = {"broker": "broker-a", "queue": number % 4}
        tag = "ba"[number % 2]
        sent.append(producer.send(topic, f"m{number}", tag=tag, keys=[f"k{number}"], **queue))
    # A consumer that leaves writes its positions; one that stays does ten seconds later.
    first = client("push", group=group, topics={topic: "*"})
    first.wait_for(8)
    first.close()
    consumer = client("push", group=group, topics={topic: "*"})
    wait_until(lambda: sum(one["topic"] == topic for one in consumer("queues")) == 4)

    def says(pattern: str, *arguments: str) -> None:
        wait_until(lambda: re.search(pattern, admin("run", arguments=list(arguments))))

    # The first may have left before its results were booked; then the second writes them.
    says(rf"(?s){topic} +broker-a +3 +2 +2 .*Diff Total: 0", "consumerProgress", "-g", group)
    # Brokers know a producer from its first heartbeat on, a second after its start.
    says("0001", "producerConnection", "-g", producers, "-t", topic)
    # The trace is written behind the producer's back.
    says(producers, "QueryMsgTraceById", "-i", sent[0]["id"])
    names = {
        "broker": cluster.broker.address,
        "topic": topic,
        "group": group,
        "producers": producers,
        "mid": sent[0]["offset_id"],
        "uid": sent[0]["id"],
        "client": consumer("client_id"),
        "folder": str(tmp_path_factory.mktemp("exports")),
    }
    yield Tools(admin, names)
    own.kill()


def test_every_command_without_access_control(tools: Tools) -> None:
    wrong = []
    for command in COMMANDS:
        if command.acl:
            continue
        said = tools.says(command)
        if re.search(FAILED, said) or not re.search(tools.shows(command), said):
            wrong.append(f"{command}\n  wanted {tools.shows(command)}\n  said {said}")
    assert not wrong, "\n".join(wrong)


def test_the_table_has_all_commands(rocket: RocketSite) -> None:
    admin = rocket.client(rocket.cluster("java"), "admin")
    listed = re.findall(r"(?m)^ +(\w+) +\S", str(admin("run", arguments=[])))
    assert {command.name for command in [*COMMANDS, *NOT_RUN]} == set(listed)
