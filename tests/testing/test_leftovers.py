"""What tests leave behind, in a pytest of its own."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]

OPTIONS = ["-p", "no:randomly", "-q", "-o", "asyncio_default_fixture_loop_scope=function"]
HEAD = """
import asyncio, socket, sys, threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit
import pytest
import coherer, coherer.blocking
from coherer.testing import FaultProxy, embedded_node

ended, kept = threading.Event(), []
"""


def warned(pytester: pytest.Pytester, test: str, *options: str) -> str:
    path = pytester.makepyfile(HEAD + test)
    result = pytester.runpytest_subprocess(*OPTIONS, *options)
    result.assert_outcomes(passed=test.count("def test_"), warnings=test.count("# leaves"))
    return result.stdout.str().replace(str(path), "test.py")


def line(test: str, text: str) -> int:
    return (
        (HEAD + test)
        .split("\n")
        .index(next(one for one in (HEAD + test).split("\n") if text in one))
    )


def test_blocking_clients(pytester: pytest.Pytester) -> None:
    test = """
def test_it(coherer_url, coherer_topic):  # leaves
    client = coherer.blocking.connect(coherer_url)
    kept.append(client)
    producer = client.producer(coherer_topic)
    producer.__enter__()
    kept.append(producer)
"""
    out = warned(pytester, test)
    assert "test_it left behind, and should close or end:" in out
    assert f"opened at test.py:{line(test, 'blocking.connect(coherer_url)')}" in out
    assert f"opened at test.py:{line(test, 'client.producer')}" in out
    assert out.count("<Client of tubemq://") == 1
    assert out.count("<Producer of ") == 1


def test_what_was_dropped_and_not_closed(pytester: pytest.Pytester) -> None:
    """Python collects it at the end of the test, before the plugin looks."""
    test = """
def test_blocking(coherer_url, coherer_topic):  # leaves
    client = coherer.blocking.connect(coherer_url)
    client.producer(coherer_topic).__enter__()

def test_closed_by_its_client(coherer_url, coherer_topic):
    with coherer.blocking.connect(coherer_url) as client:
        producer = client.producer(coherer_topic)
        producer.__enter__()

@pytest.mark.asyncio
async def test_asyncio(coherer_url, coherer_topic):  # leaves
    client = coherer.connect(coherer_url)
    producer = client.producer(coherer_topic)
    await producer.start()
    await producer.close()
"""
    out = warned(pytester, test)
    assert out.count("<Client of tubemq://127.0.0.1:") == 2
    assert out.count("<Producer of ") == 1
    for opened in ("= coherer.blocking.connect", "(coherer_topic).__enter__", "= coherer.connect"):
        assert f"opened at test.py:{line(test, opened)}" in out
    assert "thread" not in out, "the client's own, which ends"


def test_clients_and_tasks_in_virtual_time(pytester: pytest.Pytester) -> None:
    test = """
async def test_it(coherer_simulated):  # leaves
    client = coherer.connect(coherer_simulated.rocketmq_url)
    consumer = client.consumer("shop", "orders")
    await consumer.start()
    kept.extend([client, consumer, asyncio.create_task(forever())])
    await asyncio.sleep(1)

async def forever():
    await asyncio.sleep(1e9)
"""
    out = warned(pytester, test)
    assert "<Client of rocketmq://" in out
    assert f"opened at test.py:{line(test, 'consumer.start()')}" in out
    assert f"task forever, which waits at test.py:{line(test, 'sleep(1e9)')}" in out


def test_nodes_threads_proxies_and_sockets(pytester: pytest.Pytester) -> None:
    test = """
def work():
    ended.wait()

def test_socket(coherer_url):  # leaves
    kept.append(socket.create_connection(("127.0.0.1", urlsplit(coherer_url).port)))

def test_thread(coherer_url):  # leaves
    threading.Thread(target=work, name="worker", daemon=True).start()

def test_node(coherer_url):  # leaves
    block = embedded_node()
    kept.extend([block, block.__enter__()])

@pytest.mark.asyncio
async def test_proxy(coherer_url):  # leaves
    proxy = FaultProxy.before(coherer_url)
    await proxy.start()
    kept.append(proxy)
"""
    out = warned(pytester, test)
    assert "connected to 127.0.0.1:" in out
    assert f"thread worker, which runs work of test.py:{line(test, 'def work')}" in out
    assert f"opened at test.py:{line(test, 'block.__enter__()')}" in out
    assert "<EmbeddedNode tubemq://127.0.0.1:" in out
    assert f"opened at test.py:{line(test, 'proxy.start()')}" in out


def test_a_socket_beside_clients(pytester: pytest.Pytester) -> None:
    """The connections of clients count with the clients, whoever shares them."""
    test = """
@pytest.fixture(scope="module")
def shared(coherer_url):
    with coherer.blocking.connect(coherer_url) as client, client.producer() as producer:
        yield producer

def test_socket(shared, coherer_url, coherer_topic):  # leaves
    shared.send(coherer.Message(coherer_topic, b"1"))
    kept.append(socket.create_connection(("127.0.0.1", urlsplit(coherer_url).port)))

def test_both(coherer_url, coherer_topic):  # leaves
    kept.append(coherer.blocking.connect(coherer_url))
    kept.append(kept[-1].producer(coherer_topic))
    kept[-1].__enter__()
    kept.append(socket.create_connection(("127.0.0.1", urlsplit(coherer_url).port)))
"""
    out = warned(pytester, test)
    assert out.count("socket 127.0.0.1:") == 2
    assert out.count("<Client of tubemq://") == 1


LIBRARY = """
import threading

def wait():
    threading.Event().wait()

def start():
    threading.Thread(target=wait, daemon=True).start()
"""

NOTHING = """
@pytest.fixture(scope="module")
def shared(coherer_url):
    client = coherer.blocking.connect(coherer_url)
    with client, client.producer() as producer:
        yield producer

@pytest.fixture
def own(coherer_rocketmq_url):
    with coherer.blocking.connect(coherer_rocketmq_url) as client:
        yield client

@pytest.mark.parametrize("number", range(4))
def test_shared(shared, own, coherer_topic, number):
    shared.send(coherer.Message(coherer_topic, b"1"))
    with own.producer(coherer_topic) as producer:
        producer.send(coherer.Message(coherer_topic, b"1"))

async def test_simulated(coherer_simulated):
    async with coherer.connect(coherer_simulated.url) as client, client.producer("a") as producer:
        await producer.send(coherer.Message("a", b"1"))

def test_a_thread_of_a_library(coherer_url):
    library.start()

def test_an_executor(coherer_url):
    kept.append(ThreadPoolExecutor(1))
    kept[-1].submit(len, [])

def test_a_loop_that_ends_its_executor(coherer_url):
    begun = threading.Event()

    class Executor:
        def shutdown(self, wait):
            begun.set()
            if wait:
                ended.wait()

    loop = asyncio.new_event_loop()
    loop._default_executor = Executor()
    threading.Thread(target=loop._do_shutdown, args=(None,), daemon=True).start()
    begun.wait()
    loop.close()

def test_without_a_fixture():
    kept.append(coherer.blocking.connect("tubemq://127.0.0.1:1"))

@pytest.mark.xfail(strict=True)
def test_that_fails(coherer_url):
    kept.append(coherer.blocking.connect(coherer_url))
    assert False
"""


@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_nothing(pytester: pytest.Pytester, workers: list[str]) -> None:
    installed = pytester.mkdir("site-packages")
    (installed / "library.py").write_text(LIBRARY)
    pytester.makepyfile(HEAD + f"sys.path.append({str(installed)!r})\nimport library\n" + NOTHING)
    result = pytester.runpytest_subprocess(*OPTIONS, *workers, "-W", "error")
    result.assert_outcomes(passed=9, xfailed=1)


def test_two_workers_name_what_is_left(pytester: pytest.Pytester) -> None:
    test = """
@pytest.mark.parametrize("number", range(6))
def test_it(coherer_url, coherer_topic, number):
    client = coherer.blocking.connect(coherer_url)
    kept.append(client)
    with client.producer(coherer_topic) as producer:
        producer.send(coherer.Message(coherer_topic, b"1"))
"""
    pytester.makepyfile(HEAD + test)
    result = pytester.runpytest_subprocess(*OPTIONS, "-n", "2")
    result.assert_outcomes(passed=6, warnings=6)
    assert result.stdout.str().count("<Client of tubemq://127.0.0.1:") == 6


def test_a_warning_can_fail_the_test(pytester: pytest.Pytester) -> None:
    test = """
def test_it(coherer_url):
    kept.append(coherer.blocking.connect(coherer_url))
"""
    pytester.makepyfile(HEAD + test)
    result = pytester.runpytest_subprocess(
        *OPTIONS, "-W", "error::coherer.testing.LeftBehindWarning"
    )
    result.assert_outcomes(passed=1, errors=1)
