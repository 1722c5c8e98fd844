from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path

import pytest

import coherer
import coherer.blocking
from coherer._client.engine.options import Address, parse_url
from coherer._client.tubemq.cluster import ClientOptions, Credentials, Signer, address_number
from coherer._net import TlsOptions
from coherer._wire.tubemq import codes, methods
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.names import BrokerInfo
from coherer.errors import (
    ClosedError,
    ForkedError,
    RefusedError,
    RequestTimeoutError,
    UnavailableError,
    UsageError,
)
from coherer.message import Message
from tests.client.scripted_answers import partition_register
from tests.client.tube_clients import by_key


@pytest.fixture
async def client(fake):
    async with coherer.connect(f"tubemq://127.0.0.1:{fake.master.port}", timeout_ms=500) as client:
        yield client


@pytest.mark.parametrize("connect", [coherer.connect, coherer.blocking.connect])
def test_the_environment_may_give_the_url(monkeypatch: pytest.MonkeyPatch, connect) -> None:
    def name(*url: str) -> str:
        client = connect(*url)
        if connect is coherer.blocking.connect:
            client.close()
        return repr(client)

    monkeypatch.delenv("COHERER_URL", raising=False)
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(UsageError, match="No URL is given"):
        connect()
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.1:9876;b")
    assert name() == "<Client of rocketmq://10.0.0.1:9876,b:9876>"
    monkeypatch.setenv("COHERER_URL", "tubemq://a")
    assert name() == "<Client of tubemq://a:8715>"
    assert repr(coherer.rocketmq.connect()) == "<Client of rocketmq://10.0.0.1:9876,b:9876>"
    assert name("tubemq://c:1") == "<Client of tubemq://c:1>"


async def test_all_together(fake, client) -> None:
    async with client.producer("demo") as producer:
        await producer.send_many(Message("demo", b"%d" % n) for n in range(10))
    async with client.consumer("readers", "demo", start="earliest") as consumer:
        bodies = set()
        async for message in consumer:
            bodies.add(message.body)
            if len(bodies) == 10:
                break
    assert fake.broker.connections == fake.master.connections == 1


async def test_what_there_is(fake, client) -> None:
    fake.topics["other"] = 1
    fake.put("demo", 2, b"a", b"b")
    assert [one.key for one in await client.partitions("demo")] == [
        "1:demo:0",
        "1:demo:1",
        "1:demo:2",
    ]
    offsets, others = await asyncio.gather(client.offsets("demo"), client.offsets("other"))
    assert by_key(offsets) == {"1:demo:0": (0, 0), "1:demo:1": (0, 0), "1:demo:2": (0, 2)}
    assert by_key(others) == {"1:other:0": (0, 0)}
    fake.put("demo", 2, b"c")
    fake.producers.clear()  # the master forgets who was silent
    assert by_key(await client.offsets("demo"))["1:demo:2"] == (0, 3)
    groups = {request.groupName for request in fake.asked(methods.PARTITION_REGISTER)}
    assert len(groups) == 2  # at a time; used again after
    assert all(group.startswith("coherer_reader_") for group in groups)
    assert not fake.holders
    assert not fake.groups


async def test_a_partition_that_was_not_given_up_can_be_registered_again(fake, client) -> None:
    def lose_the_end(asked) -> None:
        if asked.message.opType == methods.UNREGISTER:
            asked.refuse(500)
        else:
            partition_register(asked)

    fake.put("demo", 0, b"a")
    fake.always(methods.PARTITION_REGISTER, lose_the_end)
    for _ in range(2):
        assert len(await client.offsets("demo")) == 3
    assert len(fake.holders) == 3, "the broker thinks that the client has them"
    [partition, *_] = await client.partitions("demo")
    async with client.reader(partition, 0) as reader:
        assert (await reader.read()).bodies() == [b"a"]


async def test_a_group_is_not_used_again_while_the_broker_has_a_request_of_it(fake, kit) -> None:
    held = []

    def hold(asked) -> None:
        held.append(asked)

    fake.script(methods.PARTITION_REGISTER, kit.refuse(500), hold, hold)
    url = f"tubemq://127.0.0.1:{fake.master.port}"
    async with coherer.connect(url, timeout_ms=60_000) as client:
        [partition, *_] = await client.partitions("demo")
        looking = asyncio.create_task(client.offsets("demo"))
        await fake.until(lambda: len(held) == 2)
        for _ in range(2):  # the refusal has arrived when the first one begins to read
            async with client.reader(partition, 0):
                group = fake.asked(methods.PARTITION_REGISTER)[-1].groupName
        assert group not in {asked.message.groupName for asked in held}
        for asked in held:
            partition_register(asked)
        assert len(await looking) == 3
    assert not fake.holders


async def test_a_topic_that_is_not_there(fake, client) -> None:
    with pytest.raises(RefusedError) as caught:
        await client.offsets("nowhere")
    assert (caught.value.topic, caught.value.code) == ("nowhere", 431)
    assert len(fake.asked(methods.CONSUMER_REGISTER_V2)) == 1, "asking again would change nothing"


async def test_a_topic_that_takes_no_messages_is_read_all_the_same(fake, client) -> None:
    """Producers are told of no partition while brokers are closed for writing, or emptied."""
    fake.put("demo", 2, b"a")
    fake.always(methods.PRODUCER_HEARTBEAT, lambda asked: asked.answer(brokerCheckSum=7))
    assert len(await client.partitions("demo")) == 3
    assert by_key(await client.offsets("demo"))["1:demo:2"] == (0, 1)


async def test_what_brokers_want_to_be_shown_comes_with_each_look(fake, client) -> None:
    """A stream looks for hours; the master's tokens change every few minutes."""
    await client.offsets("demo")

    def renewed(asked) -> None:
        fake.groups[asked.message.groupName][asked.message.clientId] = fake.member("demo")
        asked.answer(
            brokerConfigId=7,
            brokerConfigList=[broker.text() for broker in fake.brokers],
            authorizedInfo=pb.MasterAuthorizedInfo(visitAuthorizedToken=99),
        )

    fake.script(methods.CONSUMER_REGISTER_V2, renewed)
    [partition, *_] = await client.partitions("demo")
    async with client.reader(partition, 0):
        shown = fake.asked(methods.PARTITION_REGISTER)[-1].authInfo.visitAuthorizedToken
    assert shown == 99


async def test_a_broker_that_cannot_be_read_is_named(fake, client) -> None:
    fake.brokers.append(BrokerInfo(2, "10.9.9.9", 8123))
    fake.unreadable = {2}
    assert {one.broker.id for one in await client.partitions("demo")} == {1}
    assert [(one.id, one.host) for one in await client.unreadable_brokers("demo")] == [
        (2, "10.9.9.9")
    ]
    assert sorted(by_key(await client.offsets("demo"))) == ["1:demo:0", "1:demo:1", "1:demo:2"]


@pytest.mark.parametrize("code", [450, 455])
async def test_a_group_that_may_not_consume_asks_as_a_producer(fake, client, code: int) -> None:
    fake.always(methods.CONSUMER_REGISTER_V2, lambda asked: asked.refuse(code))
    assert len(await client.partitions("demo")) == 3
    assert await client.unreadable_brokers("demo") == []


async def test_a_master_without_surveys_is_asked_as_a_producer(fake, client) -> None:
    fake.always(
        methods.CONSUMER_REGISTER_V2,
        lambda asked: asked.fail("java.lang.Exception", "Unsupported method ID :20"),
    )
    assert len(await client.offsets("demo")) == 3


async def test_partitions_are_looked_up_anew_when_their_broker_is_gone(fake, client) -> None:
    fake.topics["demo"] = 1
    assert [one.key for one in await client.offsets("demo")] == ["1:demo:0"]
    broker = await fake.listen()
    fake.brokers[0] = BrokerInfo(3, "127.0.0.1", broker.port)
    fake.check_sum += 1
    await fake.broker.close(timeout_ms=0)
    assert [one.key for one in await client.offsets("demo")] == ["3:demo:0"]


async def read(reader) -> list[bytes]:
    bodies: list[bytes] = []
    while (batch := await reader.read()) is not None:
        bodies += batch.bodies()
    return bodies


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, None, range(23)),
        (0, 23, range(23)),
        (3, 17, range(3, 17)),
        (5, 10, range(5, 10)),
        (7, 7, ()),
        (7, 8, (7,)),
        (20, 100, range(20, 23)),
        (23, 30, ()),
    ],
)
async def test_ranges_are_exact(fake, client, start: int, end: int | None, expected) -> None:
    fake.topics["demo"] = 1
    fake.put("demo", 0, *[b"%d" % n for n in range(23)])
    [partition] = await client.partitions("demo")
    async with client.reader(partition, start, end=end) as reader:
        assert await read(reader) == [b"%d" % n for n in expected]
        assert await reader.read() is None
    assert not fake.holders


async def test_a_range_whose_end_comes_while_it_is_read(fake, client) -> None:
    fake.topics["demo"] = 1
    fake.put("demo", 0, b"0")
    [partition] = await client.partitions("demo")
    async with client.reader(partition, 0, end=3) as reader:
        assert (await reader.read()).bodies() == [b"0"]
        assert await reader.read() is None
        fake.put("demo", 0, b"1", b"2", b"3")
        assert (await reader.read()).bodies() == [b"1", b"2"]
        assert await reader.read() is None


async def test_a_range_that_ends_within_an_answer_lacks_nothing(fake, client, caplog) -> None:
    fake.topics["demo"] = 1
    fake.put("demo", 0, *[b"%d" % n for n in range(10)])
    [partition] = await client.partitions("demo")
    with caplog.at_level("WARNING"):
        async with client.reader(partition, 0, end=3) as reader:
            assert await read(reader) == [b"0", b"1", b"2"]
            assert reader.left_out == 0
    assert not caplog.records


async def test_two_readers_of_one_partition(fake, client) -> None:
    fake.topics["demo"] = 1
    fake.put("demo", 0, *[b"%d" % n for n in range(12)])
    [partition] = await client.partitions("demo")
    async with client.reader(partition, 0) as first, client.reader(partition, 6) as second:
        assert (await first.read()).offset == 0
        assert (await second.read()).offset == 6
        assert (await first.read()).offset == 5


async def test_a_reader_survives_a_broken_connection_and_a_restart(fake, kit, client) -> None:
    fake.topics["demo"] = 1
    fake.put("demo", 0, *[b"%d" % n for n in range(20)])
    [partition] = await client.partitions("demo")
    async with client.reader(partition, 0) as reader:
        bodies = (await reader.read()).bodies()
        fake.script(methods.GET_MESSAGES, kit.hang_up)
        bodies += (await reader.read()).bodies()
        await fake.restart_broker()
        bodies += await read(reader)
    assert bodies == [b"%d" % n for n in range(20)]


async def test_refusals_that_pass(fake, kit, client) -> None:
    fake.topics["demo"] = 1
    fake.put("demo", 0, b"a")
    [partition] = await client.partitions("demo")
    fake.script(methods.GET_MESSAGES, kit.refuse(452, minLimitTime=1), kit.refuse(503))
    async with client.reader(partition, 0) as reader:
        assert (await reader.read()).bodies() == [b"a"]


async def test_a_reader_that_gives_up(fake, kit, client) -> None:
    fake.topics["demo"] = 1
    fake.put("demo", 0, b"a")
    [partition] = await client.partitions("demo")
    async with client.reader(partition, 0) as reader:
        fake.always(methods.GET_MESSAGES, kit.refuse(403, "closed"))
        with pytest.raises(codes.ForbiddenError, match="closed"):
            await reader.read()
        fake.always(methods.GET_MESSAGES, kit.refuse(503, "busy"))
        with pytest.raises(codes.ServiceUnavailableError, match="busy"):
            await reader.read()
        fake.always(methods.GET_MESSAGES, kit.silence)
        with pytest.raises(RequestTimeoutError):
            await reader.read()


async def test_a_partition_that_is_not_there(fake, kit, client) -> None:
    [partition, *_] = await client.partitions("demo")
    fake.script(methods.PARTITION_REGISTER, kit.refuse(403, "no such thing"))
    reader = client.reader(partition, 0)
    with pytest.raises(codes.ForbiddenError):
        await reader.start()
    with pytest.raises(UsageError, match="is not started"):
        await reader.read()
    await reader.close()


async def test_a_reader_with_a_broker_of_java(fake, client) -> None:
    fake.ours = fake.holds_gets = False
    fake.topics["demo"] = 1
    fake.put("demo", 0, *[b"%d" % n for n in range(12)])
    [partition] = await client.partitions("demo")
    assert by_key(await client.offsets("demo")) == {"1:demo:0": (0, 12 * 28)}
    async with client.reader(partition, 2 * 28, end=8 * 28) as reader:
        assert (await reader.read()).bodies() == [b"%d" % n for n in range(2, 7)]
        assert (reader.exact, reader.position) == (False, 7 * 28)
        batch = await reader.read()
        assert batch.bodies() == [b"%d" % n for n in range(7, 12)]  # the whole package
        assert (batch.offset, reader.position) == (7 * 28, 12 * 28)
        assert await reader.read() is None
    async with client.reader(partition, 0) as reader:
        assert len(await read(reader)) == 12


async def test_empty_packages(fake, client) -> None:
    fake.ours = fake.holds_gets = False
    fake.topics["demo"] = 1
    fake.put("demo", 0, b"a")
    [partition] = await client.partitions("demo")
    fake.script(
        methods.GET_MESSAGES,
        lambda asked: asked.answer(currOffset=0, maxOffset=28, currDataDlt=1),
    )
    async with client.reader(partition, 0) as reader:
        assert await read(reader) == [b"a"]


async def test_nonsense_ranges(fake, client) -> None:
    [partition, *_] = await client.partitions("demo")
    for start, end in ((-1, None), (5, 4)):
        with pytest.raises(UsageError):
            client.reader(partition, start, end=end)


async def test_closing_closes_everything(fake) -> None:
    client = coherer.connect(f"tubemq://127.0.0.1:{fake.master.port}")
    producer = client.producer("demo")
    await producer.start()
    consumer = client.consumer("readers", "demo")
    await consumer.start()
    reader = client.reader((await client.partitions("demo"))[0], 0)
    await reader.start()
    await client.close()
    await client.close()
    assert len(fake.asked(methods.PRODUCER_CLOSE)) == 2  # the planner is one
    assert len(fake.asked(methods.CONSUMER_CLOSE)) == 2  # it has asked where the topic can be read
    assert not fake.holders
    for use in (client.producer, lambda: client.consumer("g", "t")):
        with pytest.raises(ClosedError):
            use()


async def test_a_client_forgets_what_is_gone(fake, client) -> None:
    reader = client.reader((await client.partitions("demo"))[0], 0)
    async with reader:
        await reader.read()
    gone = weakref.ref(reader)
    del reader
    gc.collect()
    assert gone() is None


async def test_a_fork(client, forked) -> None:
    with forked():
        with pytest.raises(ForkedError):
            client.producer("demo")
        with pytest.raises(ForkedError):
            await client.offsets("demo")


async def test_tls_is_asked_for_by_the_scheme(fake) -> None:
    assert coherer.connect("tubemqs://127.0.0.1").options.tls == TlsOptions()
    mine = TlsOptions(trust=Path("/no/such/file.pem"))
    client = coherer.connect("tubemqs://127.0.0.1", tls=mine)
    assert client.options.tls == mine
    with pytest.raises(UsageError):
        await client.partitions("demo")
    plain = coherer.connect(
        f"tubemqs://127.0.0.1:{fake.master.port}", timeout_ms=50, connect_timeout_ms=200
    )
    with pytest.raises(UnavailableError):  # nobody speaks TLS there
        await plain.partitions("demo")
    await plain.close()
    await client.close()


def test_administration() -> None:
    client = coherer.connect("tubemq://10.0.0.1:8715,10.0.0.2")
    assert repr(client.admin()) == "Admin('tubemq://10.0.0.1:8715,10.0.0.2:8715')"
    other = coherer.connect("tubemq://10.0.0.1", admin="http://10.0.0.9:9999")
    assert "10.0.0.9:9999" in repr(other.admin())


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("tubemq://a", (("a", 8715),)),
        ("tubemq://a:1,b:2, c", (("a", 1), ("b", 2), ("c", 8715))),
        ("tubemq://a,a", (("a", 8715),)),
        ("tubemqs://a", (("a", 8716),)),
        ("tubemq://[::1],[fe80::1]:99/", (("::1", 8715), ("fe80::1", 99))),
    ],
)
def test_urls(url: str, servers: tuple[tuple[str, int], ...]) -> None:
    assert parse_url(url) == Address(
        url.split(":", maxsplit=1)[0], servers, url.startswith("tubemqs")
    )


@pytest.mark.parametrize(
    "url", ["", "a:1", "http://a", "tubemq://", "tubemq://a:x", "tubemq://a:0", "tubemq://a,,b"]
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(UsageError):
        coherer.connect(url)


@pytest.mark.parametrize(
    "options",
    [
        {"addresses": ()},
        {"user": "ann"},
        {"password": "x"},
        {"timeout_ms": 1},
        {"timeout_ms": 600_001},
        {"heartbeat_ms": 0},
        {"connect_timeout_ms": 0},
    ],
)
def test_options_that_make_no_sense(options) -> None:
    with pytest.raises(UsageError):
        ClientOptions(**({"addresses": (("a", 1),)} | options))


def test_what_is_shown_to_servers() -> None:
    nobody = Credentials(None)
    assert nobody.for_master() is None
    assert nobody.for_broker() == pb.AuthorizedInfo(visitAuthorizedToken=-2)
    ann = Credentials(Signer("ann", "secret"))
    assert ann.signs
    ann.renew(pb.MasterAuthorizedInfo(visitAuthorizedToken=5, authAuthorizedToken="granted"))
    ann.renew(pb.MasterAuthorizedInfo(visitAuthorizedToken=6))
    assert ann.for_broker(prefer_token=True).authAuthorizedToken == "granted"
    assert ann.for_broker().authAuthorizedToken.startswith("ann ")
    told = ann.for_master()
    assert told is not None
    assert (told.authInfo.userName, told.authorizedToken) == ("ann", "granted")
    assert "secret" not in repr(Signer("ann", "secret"))
    assert address_number("1.2.3.4") == 0x01020304
