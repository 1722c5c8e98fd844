"""Messages that are decoded when somebody looks at more than their bodies.

Most of the time that receiving takes would go into properties, times and ids that nobody asks for.
So a consumer hands out views: the body, and where the message is in its batch. Any other attribute
of `StoredMessage` is there as well, and makes the whole message when it is first asked for.

A view is equal to the message that it shows, prints as it, and pickles as it; for `isinstance` and
`match` it is one. Where the message itself is needed (`msgspec.structs.replace`, encoders that go
by the type), `detached` gives it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from coherer._wire.rocketmq.messages import StoredMessage

if TYPE_CHECKING:
    from coherer._client.rocketmq.claimed import ClaimedBatch

    class View(StoredMessage, frozen=True):
        """A message of a batch. For type checkers it is one; see below."""

        @property
        def source(self) -> ClaimedBatch:
            """The batch."""
            ...

        @property
        def number(self) -> int:
            """Its place there."""
            ...

        def detached(self) -> StoredMessage:
            """The message itself."""
            ...

else:

    class View(msgspec.Struct, frozen=True, eq=False, gc=False):
        """A message of a batch."""

        body: bytes
        source: Any
        number: int

        @property
        def __class__(self) -> type[StoredMessage]:
            return StoredMessage

        def detached(self) -> StoredMessage:
            """The message itself."""
            return self.source.message(self.number)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return getattr(self.source.message(self.number), name)

        def __repr__(self) -> str:
            return repr(self.detached())

        def __eq__(self, other: object) -> bool:
            return self.detached() == (other.detached() if isinstance(other, View) else other)

        __hash__ = None

        def __reduce__(self) -> tuple[Any, ...]:
            return self.detached().__reduce__()
