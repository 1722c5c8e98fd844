"""The exceptions that Coherer raises.

```
CohererError
├── UsageError              a call with wrong arguments or at the wrong time; nothing was sent
│   ├── ClosedError         the client, producer or consumer is closed
│   ├── ForkedError         the object was created in another process
│   └── WindowFullError     too many messages are in flight (also a `BufferError`)
├── SendManyError           messages of `send_many` failed, and the report was not checked
├── ProtocolError           the peer sent bytes that break the protocol
├── RefusedError            a server answered with an error code
│   └── AuthorizationError  it does not accept the account, or the account lacks a permission
├── UnavailableError        no server could be reached, or it did not answer in time
│   ├── ConnectError        a connection could not be made
│   │   └── WrongProtocolError  the server at that address speaks another protocol
│   ├── DisconnectedError   the connection broke while a request was in flight
│   └── RequestTimeoutError no answer in time (also a `TimeoutError`)
└── StoreError              the files of a node
    ├── StoreFullError      the disk is full; the store continues when space is free
    └── DamagedStoreError   a file does not hold what was written
```

The `code` of a `RefusedError` is the error code of the protocol. The codes that the Java systems
define have a class each, in `coherer.rocketmq` and `coherer.tubemq`:

```python
try:
    queues = await client.partitions("orders")
except coherer.rocketmq.TopicNotExistError:  # code 17
    await client.admin().topics.create("orders", 8, wait_ms=10_000)
```

The class says who has to act, the fields say where the error happened, and `hint` says what to do.
"""

from __future__ import annotations

from typing import Final

_TEXT_CHARS_MAX: Final = 4_000
"""The rest of a longer text is left out: servers and clients may send any number of megabytes as
the reason of an error, and errors end in logs and terminals."""


class CohererError(Exception):
    """The base class of all of Coherer's exceptions.

    Args:
        text: what happened, in one sentence; what follows its first 4,000 characters is left out.
        server: the address of the server, `host:port`.
        topic: the topic.
        partition: the number of the partition (TubeMQ) or queue (RocketMQ).
        code: the error code of the server.
        hint: what to do next.

    >>> print(CohererError("No answer.", server="10.0.0.1:8123", topic="a", hint="Is it up?"))
    No answer. [server 10.0.0.1:8123, topic a] Is it up?
    """

    def __init__(
        self,
        text: str,
        *,
        server: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        code: int | None = None,
        hint: str = "",
    ) -> None:
        if len(text) > _TEXT_CHARS_MAX:
            rest = len(text) - _TEXT_CHARS_MAX
            text = f"{text[:_TEXT_CHARS_MAX]} [{rest:,} more characters]"
        super().__init__(text)
        self.text = text
        self.server = server
        self.topic = topic
        self.partition = partition
        self.code = code
        self.hint = hint

    def __str__(self) -> str:
        named = {
            "code": self.code,
            "server": self.server,
            "topic": self.topic,
            "partition": self.partition,
        }
        where = ", ".join(f"{name} {value}" for name, value in named.items() if value is not None)
        return " ".join(part for part in (self.text, where and f"[{where}]", self.hint) if part)

    def __reduce__(self) -> tuple[object, ...]:
        # By default keyword-only fields are not pickled; Spark sends errors between processes.
        return (_restore, (type(self), self.text, self.__dict__))


def _restore(kind: type[CohererError], text: str, fields: dict[str, object]) -> CohererError:
    error = kind.__new__(kind)
    Exception.__init__(error, text)
    error.__dict__.update(fields)
    return error


class UsageError(CohererError, ValueError):
    """The call is wrong. Nothing was sent and nothing changed."""


class ClosedError(UsageError):
    """The client, producer or consumer has been closed."""


class ForkedError(UsageError):
    """The object was created before a fork. Connect again in the child process."""


class WindowFullError(UsageError, BufferError):
    """The producer's window of messages in flight is full. Nothing was sent."""


class SendManyError(CohererError):
    """Messages of `send_many` failed, and the program did not check the report.

    The `with` block of a producer raises it at its end. Its cause is the error of the first failed
    message.
    """


class ProtocolError(CohererError):
    """The peer sent bytes that break the protocol; its connection is closed."""


class RefusedError(CohererError):
    """A server answered with an error; `code` is its error code."""


class AuthorizationError(RefusedError):
    """A server does not accept the account, or the account lacks a permission.

    Trying again does not help: user, password or permissions have to change.
    """


class UnavailableError(CohererError):
    """No server could be reached, or no server could answer. Retrying may help."""


class ConnectError(UnavailableError):
    """A connection could not be made."""


class WrongProtocolError(ConnectError):
    """The server speaks another protocol: the address is wrong. Retrying does not help."""


class DisconnectedError(UnavailableError):
    """The connection broke before the answer: the server may or may not have done the request."""


class RequestTimeoutError(UnavailableError, TimeoutError):
    """No answer in time: the server may or may not have done the request."""


class StoreError(CohererError):
    """An error in the files of a node."""


class StoreFullError(StoreError):
    """The disk is full, or too many files are open. Nothing of the batch was stored."""


class DamagedStoreError(StoreError):
    """A file does not hold what was written to it."""
