"""The client handlers answer or refuse every request, however invalid."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coherer._server.core.core import Core
from coherer._server.options.rocketmq import RocketOptions
from coherer._server.rocketmq.broker.client_calls import ClientCalls
from coherer._server.rocketmq.broker.clients import ClientHandler
from coherer._server.rocketmq.broker.reply_messages import ReplyHandler
from coherer._server.rocketmq.broker.requests import client_requests
from coherer._server.rocketmq.broker.sending import SendHandler
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.remoting import Refusal
from coherer._store import Store
from coherer._wire.rocketmq import fastjson
from coherer._wire.rocketmq.command import Command
from coherer.errors import CohererError
from coherer.testing import ManualClock
from tests.server.client_harness import OPTIONS, consumer, heartbeat, sql, tags

HEARTBEAT_BODY = heartbeat("me", [consumer("g", tags("t"), sql("u", "a > 5"))], "p")
LOCK_BODY = {
    "clientId": "me",
    "consumerGroup": "g",
    "mqSet": [{"brokerName": "b", "queueId": 0, "topic": "t"}],
}
CHECK_BODY = {"clientId": "me", "group": "g", "subscriptionData": sql("t", "a > 5")}
BODIES = {34: HEARTBEAT_BODY, 41: LOCK_BODY, 42: LOCK_BODY, 46: CHECK_BODY}
FIELDS = [
    "clientID",
    "clientId",
    "clientAddr",
    "consumerGroup",
    "producerGroup",
    "group",
    "topic",
    "timestamp",
    "isForce",
    "msgId",
    "jstackEnable",
    "a",
    "b",
    "c",
    "d",
    "e",
    "f",
    "g",
    "h",
    "i",
]

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["TAG", "SQL92", "*", "a >", "g", "me", "1795147358234"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=8) | st.sampled_from(["topic", "queueId"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


class Silent:
    """A connection without a peer."""

    peer, host_port, closed = "10.0.0.9:5", bytes(8), True

    class connection:  # noqa: N801 - stands for an attribute
        overloaded = False

    def notify(self, *_: object) -> None:
        """Discard it."""

    def close(self) -> None:
        """It is."""

    async def call(self, *_: object, **__: object) -> Command:
        raise CohererError("Nobody answers.")


class Broker:
    def __init__(self, directory: Path) -> None:
        clock = ManualClock()
        self.store = Store.open(directory, OPTIONS, now_ms=clock.now_ms)
        # Files are tested elsewhere; here they would only cost time.
        self.store.save_config = lambda name, data: None  # type: ignore[method-assign]
        self.state = RocketState(RocketOptions(), Core(self.store, clock.now_ms))
        self.clients = ClientHandler(self.state)
        options = RocketOptions(store_replies=False)
        self.state.change(options)
        replies = ReplyHandler(self.state, SendHandler(self.state))
        calls = ClientCalls(self.state)
        self.handlers = client_requests(self.clients, calls, replies)

    def ask(self, request: Command) -> None:
        """Accept any response and any refusal; other exceptions are bugs."""
        try:
            answer: Any = self.handlers[request.code](Silent(), request)  # type: ignore[arg-type]
            if inspect.isawaitable(answer):
                answer = asyncio.run(_await(answer))
            assert isinstance(answer, Command)
        except (Refusal, CohererError):
            pass
        self.state.filters.dump(0)
        self.state.topics.dump()
        self.state.groups.dump()


async def _await(answer: Any) -> Any:
    return await answer


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("garbage"))
    yield broker
    broker.store.close()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every position in a JSON value."""
    yield path
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield from places(inner, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


QUICK = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("code", BODIES)
@QUICK
@given(data=st.data())
def test_bodies_with_one_unexpected_value(broker: Broker, code: int, data: Any) -> None:
    path = data.draw(st.sampled_from(list(places(BODIES[code]))))
    body = replaced(BODIES[code], path, data.draw(VALUES))
    broker.ask(Command(code, body=fastjson.dumps(body)))


@pytest.mark.parametrize("code", BODIES)
@QUICK
@given(data=st.data())
def test_bodies_that_are_cut_or_changed(broker: Broker, code: int, data: Any) -> None:
    body = bytearray(msgspec.json.encode(BODIES[code]))
    at = data.draw(st.integers(0, len(body) - 1))
    if data.draw(st.booleans()):
        del body[at:]
    else:
        body[at : at + 1] = data.draw(st.binary(max_size=4))
    broker.ask(Command(code, body=bytes(body)))


@QUICK
@given(
    code=st.sampled_from([35, 38, 203, 204, 222, 223, 300, 307, 309, 324, 325]),
    fields=st.dictionaries(
        st.sampled_from(FIELDS),
        st.text(max_size=10)
        | st.integers(-(2**70), 2**70).map(str)
        | st.sampled_from(["g", "me", "t", "true", "7F00000100002A9F0000000000000000"]),
    ),
    language=st.sampled_from([None, "JAVA", "CPP"]),
    version=st.sampled_from([-1, 0, 27, 61, 399, 2**31 - 1]),
    body=st.binary(max_size=10),
)
def test_fields_of_every_kind(
    broker: Broker,
    code: int,
    fields: dict[str, str],
    language: str | None,
    version: int,
    body: bytes,
) -> None:
    broker.ask(
        Command(34, language="GO", version=version, body=msgspec.json.encode(HEARTBEAT_BODY))
    )
    broker.ask(Command(code, language=language, version=version, fields=fields, body=body))
