"""Signals and forks, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from coherer._wire.tubemq import methods
from coherer.testing import embedded_node

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has other signals and no fork")

LOOP = """
import signal, sys
import coherer.blocking
signal.signal(signal.SIGINT, signal.default_int_handler)  # not what we inherited
with coherer.blocking.connect(sys.argv[1]) as client:
    with client.consumer("readers", "demo", start="earliest") as consumer:
        consumer.wait_assigned(10_000)
        try:
            print("waiting", flush=True)
            for message in consumer:
                print(message.body, flush=True)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        print(consumer.receive(0), flush=True)
"""

FORK = """
import os, sys
import coherer
import coherer.blocking
from coherer.errors import ForkedError
client = coherer.blocking.connect(sys.argv[1])
producer = client.producer("demo")
producer.start()
child = os.fork()
if child == 0:
    try:
        producer.send(coherer.Message("demo", b"from the child"))
    except ForkedError as error:
        print(error, flush=True)
    client.close()
    with coherer.blocking.connect(sys.argv[1]) as own, own.producer("demo") as fresh:
        fresh.send(coherer.Message("demo", b"from its own client"))
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
producer.send(coherer.Message("demo", b"from the parent"))
client.close()
"""


FORK_IN_LOOP = """
import os, sys
import coherer
import coherer.blocking
from coherer.errors import ForkedError
with coherer.blocking.connect(sys.argv[1]) as client:
    with client.producer("forked") as producer:
        for body in (b"1", b"2"):
            producer.send(coherer.Message("forked", body))
    with client.consumer("readers", "forked", start="earliest") as consumer:
        messages = iter(consumer)
        print(next(messages).body, flush=True)
        child = os.fork()
        if child == 0:
            try:
                print(next(messages).body, flush=True)
            except ForkedError:
                print("forked", flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(next(messages).body, flush=True)
"""


FORK_WHILE_CONNECTING = """
import os, sys, threading
from coherer.blocking import _api, shared
began, goes_on, connect = threading.Event(), threading.Event(), _api.connect
def connect_slowly(*args, **options):
    began.set()
    goes_on.wait()
    return connect(*args, **options)
_api.connect = connect_slowly
thread = threading.Thread(target=shared, args=(sys.argv[1],))
thread.start()
began.wait()
child = os.fork()
goes_on.set()
if child == 0:
    print(len(shared(sys.argv[1]).partitions("demo")), flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
thread.join()
"""


def test_ctrl_c_ends_a_loop_and_the_client_stays_usable(fake, url: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", LOOP, url], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=30)
    assert rest.split() == ["interrupted", "None"]
    assert process.returncode == 0
    assert fake.asked(methods.CONSUMER_CLOSE)
    assert not fake.holders


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_connects_anew(fake, url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK, url],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert "Connect again in this process." in done.stdout
    stored = {data for log in fake.logs.values() for data, _, _ in log}
    assert stored == {b"from its own client", b"from the parent"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_a_child_does_not_go_on_with_a_loop(protocol: str) -> None:
    """Also within a batch that the parent has received."""
    with embedded_node() as node:
        node.create_topic("forked", 1)
        url = node.url if protocol == "tubemq" else node.rocketmq_url
        done = subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK_IN_LOOP, url],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    assert done.stdout.split() == ["b'1'", "forked", "b'2'"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_shares_a_client_although_its_parent_was_just_connecting(fake, url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK_WHILE_CONNECTING, url],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.split() == ["3"]
