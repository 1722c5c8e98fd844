"""Every error that Coherer raises on purpose.

```
CohererError
├── UsageError              you called us wrongly; nothing was sent
│   ├── ClosedError         the client, producer or consumer is closed
│   ├── ForkedError         the object was made in another process
│   └── WindowFullError     too many messages are under way (also a `BufferError`)
├── SendManyError           messages of `send_many` failed, and nobody looked at the report
├── ProtocolError           the peer sent bytes that break the protocol
├── RefusedError            a server understood the request and said no; it gave a code
├── UnavailableError        no server could be reached, or none answered in time
│   ├── ConnectError        a connection could not be made
│   │   └── WrongProtocolError  something else than the expected server answers there
│   ├── DisconnectedError   the connection broke while a request was under way
│   └── RequestTimeoutError no answer in time (also a `TimeoutError`)
└── StoreError              the node's own disk
    ├── StoreFullError      there is no room; it heals when there is
    └── DamagedStoreError   a file does not hold what was written
```

`RefusedError` has a subclass per result code of TubeMQ in `coherer._wire.tubemq.codes`.

The class says whose fault it is; the fields say where; `hint` says what to do next.
"""

from __future__ import annotations


class CohererError(Exception):
    """The root of the tree.

    Args:
        text: what happened, one sentence.
        server: the server's address as `host:port`, where one was involved.
        topic: the topic, where one was involved.
        partition: the partition (TubeMQ) or queue (RocketMQ) number.
        code: the code that the server gave.
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
        # Keyword-only fields would be lost by the default pickling; Spark carries errors
        # between processes.
        return (_restore, (type(self), self.text, self.__dict__))


def _restore(kind: type[CohererError], text: str, fields: dict[str, object]) -> CohererError:
    error = kind.__new__(kind)
    Exception.__init__(error, text)
    error.__dict__.update(fields)
    return error


class UsageError(CohererError, ValueError):
    """You called us wrongly. Nothing was sent and nothing changed."""


class ClosedError(UsageError):
    """The client, producer, consumer or node has been closed."""


class ForkedError(UsageError):
    """The object was made before a fork. Connect again in the child process."""


class WindowFullError(UsageError, BufferError):
    """As many messages are under way as the producer's window allows. Nothing was sent."""


class SendManyError(CohererError):
    """Messages given to `send_many` failed, and the program did not look at the report.

    The `with` block of a producer raises it at its end. The error of the first failed message is
    its cause.
    """


class ProtocolError(CohererError):
    """The peer sent bytes that break the protocol; its connection is closed."""


class RefusedError(CohererError):
    """A server understood the request and refused it. `code` says why."""


class UnavailableError(CohererError):
    """No server could be reached, or none was able to serve. Trying again may help."""


class ConnectError(UnavailableError):
    """A connection could not be made."""


class WrongProtocolError(ConnectError):
    """The server speaks another protocol. Trying again will not help; the address is wrong."""


class DisconnectedError(UnavailableError):
    """The connection broke before the answer came: the request may or may not have happened."""


class RequestTimeoutError(UnavailableError, TimeoutError):
    """No answer came in time: the request may or may not have happened."""


class StoreError(CohererError):
    """The node's own files."""


class StoreFullError(StoreError):
    """No room on the disk, or no more files to open. Nothing of the refused batch was kept."""


class DamagedStoreError(StoreError):
    """A file does not hold what was written to it."""
