"""Clients of the PyPI wheel `rocketmq` (the C++ client), told what to do as `Driver.java` is.

Runs in an environment of its own that holds the wheel. A zero byte ends a body in its API.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import sys
import threading
import time
import uuid
from typing import Any

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer, dll
from rocketmq.exceptions import ffi_check
from rocketmq.ffi import MessageModel

OUT = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # whatever the library prints must not stand between the JSON lines
LOCK = threading.Lock()
ERROR_LEVEL = 2


def say(form: dict[str, Any]) -> None:
    """One line."""
    with LOCK:
        OUT.write(json.dumps(form) + "\n")


def message_of(request: dict[str, Any]) -> Message:
    """The message that a request describes."""
    message = Message(request["topic"])
    message.set_body(base64.b64decode(request["body"]))
    if request.get("tag"):
        message.set_tags(request["tag"])
    if request.get("keys"):
        message.set_keys(" ".join(request["keys"]))
    for name, value in request.get("properties", {}).items():
        message.set_property(name, value)
    if request.get("delay_level"):
        message.set_delay_time_level(request["delay_level"])
    return message


def form_of(message: Any) -> dict[str, Any]:
    """A received message as JSON."""
    return {
        "topic": message.topic,
        "body": base64.b64encode(message.body).decode(),
        "tag": (message.tags or b"").decode() or None,
        "keys": (message.keys or b"").decode() or None,
        "id": message.id,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "attempt": message.reconsume_times,
        "born_ms": message.born_timestamp,
    }


class ProducerPeer:
    """Sends in every way of the wheel."""

    def __init__(self, name: str, request: dict[str, Any]) -> None:
        self.producer = Producer(request.get("group", "cpp_producers") + uuid.uuid4().hex)
        dll.SetProducerLogLevel(self.producer._handle, ERROR_LEVEL)
        self.producer.set_namesrv_addr(request["namesrv"])
        if "access_key" in request:
            keys = request["access_key"], request["secret_key"], ""
            self.producer.set_session_credentials(*keys)
        self.producer.start()

    def send(self, request: dict[str, Any]) -> dict[str, Any]:
        """One message; with `order_by`, a number, to the queue of that number."""
        message = message_of(request)
        if "order_by" in request:
            result = self.producer.send_orderly(message, int(request["order_by"]))
        else:
            result = self.producer.send_sync(message)
        return {"status": result.status.name, "id": result.msg_id, "offset": result.offset}

    def batch(self, request: dict[str, Any]) -> dict[str, Any]:
        """Several messages in one request."""
        result = self.producer.send_batch([message_of(one) for one in request["messages"]])
        return {"status": result.status.name, "id": result.msg_id, "offset": result.offset}

    def oneway(self, request: dict[str, Any]) -> bool:
        """One message without an answer."""
        self.producer.send_oneway(message_of(request))
        return True

    def close(self) -> None:
        """Ends it."""
        self.producer.shutdown()


class PushPeer:
    """Prints what it gets; FAIL_TIMES of a message is how often it fails first."""

    numbers = itertools.count()

    def __init__(self, name: str, request: dict[str, Any]) -> None:
        model = MessageModel.BROADCASTING if request.get("broadcast") else MessageModel.CLUSTERING
        orderly = bool(request.get("orderly"))
        self.consumer = PushConsumer(request["group"], orderly=orderly, message_model=model)
        dll.SetPushConsumerLogLevel(self.consumer._handle, ERROR_LEVEL)
        self.consumer.set_namesrv_addr(request["namesrv"])
        self.consumer.set_instance_name(f"{name}-{os.getpid()}-{next(self.numbers)}")

        def receive(message: Any) -> None:
            times = int(message["FAIL_TIMES"] or 0)
            failed = message.reconsume_times < times
            event = "failed" if failed else "messages"
            say({"on": name, "event": event, "messages": [form_of(message)]})
            if failed:
                raise RuntimeError("told to fail")

        for topic, expression in request["topics"].items():
            self.consumer.subscribe(topic, receive, expression)
        self.consumer.start()

    def close(self) -> None:
        """Ends it."""
        self.consumer.shutdown()


class PullPeer:
    """Pulls all that is there."""

    def __init__(self, name: str, request: dict[str, Any]) -> None:
        self.consumer = PullConsumer(request["group"])
        ffi_check(dll.SetPullConsumerLogLevel(self.consumer._handle, ERROR_LEVEL))
        self.consumer.set_namesrv_addr(request["namesrv"])
        self.consumer.start()

    def pull(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """All messages of a topic from where the last pull ended."""
        return [form_of(one) for one in self.consumer.pull(request["topic"])]

    def close(self) -> None:
        """Ends it."""
        self.consumer.shutdown()


class BenchPeer:
    """What the benchmarks measure of the wheel; see `BenchPeer.java`."""

    numbers = itertools.count()

    def __init__(self, name: str, request: dict[str, Any]) -> None:
        self.namesrv = request["namesrv"]
        self.producer = ProducerPeer(name, request)

    def publish(self, request: dict[str, Any]) -> bool:
        """Its first send finds the route."""
        return True

    def sync(self, request: dict[str, Any]) -> dict[str, Any]:
        """Threads that wait for each answer."""
        threads = request["threads"]
        each = request["count"] // threads
        body = b"x" * request["size"]

        def send() -> None:
            for _ in range(each):
                message = Message(request["topic"])
                message.set_body(body)
                self.producer.producer.send_sync(message)

        return self._timed(each * threads, [threading.Thread(target=send) for _ in range(threads)])

    def _timed(self, count: int, threads: list[threading.Thread]) -> dict[str, Any]:
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"count": count, "seconds": time.perf_counter() - start, "failed": 0}

    def consume_pull(self, request: dict[str, Any]) -> dict[str, Any]:
        """Message by message, queue after queue; from the first message to the last."""
        PullConsumer.offset_table.clear()
        peer = PullPeer("bench", {"group": request["group"], "namesrv": self.namesrv})
        wanted, got, size, start = request["count"], 0, 0, 0.0
        for message in peer.consumer.pull(request["topic"], max_num=request["per_pull"]):
            start = start or time.perf_counter()
            got += 1
            size += len(message.body)
            if got >= wanted:
                break
        seconds = time.perf_counter() - start
        peer.close()
        return {"count": got, "seconds": seconds, "bytes": size}

    def consume_push(self, request: dict[str, Any]) -> dict[str, Any]:
        """A callback for each message."""
        wanted = request["count"]
        done = threading.Event()
        counted = itertools.count(1)
        times: list[float] = []

        def receive(message: Any) -> None:
            number = next(counted)
            if number == 1 or number == wanted:
                times.append(time.perf_counter())
            if len(message.body) and number >= wanted:
                done.set()

        consumer = PushConsumer(request["group"])
        dll.SetPushConsumerLogLevel(consumer._handle, ERROR_LEVEL)
        consumer.set_namesrv_addr(self.namesrv)
        consumer.set_instance_name(f"bench-{os.getpid()}-{next(self.numbers)}")
        consumer.subscribe(request["topic"], receive, "*")
        consumer.start()
        done.wait(request.get("wait_ms", 60_000) / 1000)
        consumer.shutdown()
        return {"count": wanted if done.is_set() else 0, "seconds": times[-1] - times[0]}

    def close(self) -> None:
        """Ends it."""
        self.producer.close()


KINDS = {"producer": ProducerPeer, "push": PushPeer, "pull": PullPeer, "bench": BenchPeer}
PEERS: dict[str, Any] = {}


def act(request: dict[str, Any]) -> object:
    """Does one thing."""
    name, action = request["on"], request["do"]
    if action in KINDS:
        PEERS[name] = KINDS[action](name, request)
        return name
    return getattr(PEERS[name], action)(request) if action != "close" else PEERS.pop(name).close()


def main() -> None:
    """Answers one request after the other; the process ends with stdin."""
    say({"event": "ready"})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"ok": act(request)}
        except Exception as error:  # noqa: BLE001 - the test shall hear of it
            answer = {"error": repr(error)}
        say({"call": request["call"], **answer})
    os._exit(0)


if __name__ == "__main__":
    main()
