"""What is wrong with a message that cannot be encoded.

Types are looked at when something has failed, so that messages that are as they should be pay
nothing for it; only the body's is always asked for, because text would fail too late.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import cast

from coherer.errors import UsageError
from coherer.message import Message


def message_topic(message: Message) -> str:
    """The topic of what a program wants to send.

    Raises:
        UsageError: that is not a message.

    >>> message_topic("hello")  # type: ignore[arg-type]
    Traceback (most recent call last):
    coherer.errors.UsageError: A producer sends a Message, not str. Write Message("topic", b"body").
    """
    try:
        return message.topic
    except AttributeError:
        raise UsageError(
            f"A producer sends a Message, not {type(message).__name__}.",
            hint='Write Message("topic", b"body").',
        ) from None


def check_body(message: Message) -> None:
    """See that a body is bytes.

    Raises:
        UsageError: it is not.

    >>> check_body(Message("greetings", "hello"))  # type: ignore[arg-type]
    Traceback (most recent call last):
    coherer.errors.UsageError: A body is bytes, not str. [topic greetings] Encode it: body.encode().
    """
    body = cast("object", message.body)
    if isinstance(body, bytes | bytearray | memoryview):
        return
    hint = "Encode it: body.encode()." if isinstance(body, str) else "Make bytes of it, say JSON."
    raise UsageError(
        f"A body is bytes, not {type(body).__name__}.", topic=str(message.topic), hint=hint
    )


def mistaken(message: Message, error: Exception) -> UsageError:
    """The exception for a message whose encoding ended in a `TypeError` or the like.

    Args:
        message: what was to be sent.
        error: how that ended.

    Raises:
        UsageError: the body is no bytes.

    >>> message = Message("greetings", b"hello", properties={"age": 7})  # type: ignore[dict-item]
    >>> print(mistaken(message, TypeError()))
    Property 'age' of a message is text, not int. [topic greetings]
    """
    check_body(message)
    topic = str(message.topic)
    for what, value in _texts(message):
        if not isinstance(value, str):
            text = f"{what} of a message is text, not {type(value).__name__}."
            return UsageError(text, topic=topic)
    if not isinstance(cast("object", message.keys), tuple):
        hint = "Write ('42',) for one."
        return UsageError("Keys are a tuple of words.", topic=topic, hint=hint)
    time = cast("object", message.time)
    if time is not None and not isinstance(time, datetime):
        text = f"The time of a message is a datetime, not {type(time).__name__}."
        return UsageError(text, topic=topic, hint="Parse it: datetime.fromisoformat(text).")
    return UsageError(f"The message cannot be encoded: {error}.", topic=topic)


def _texts(message: Message) -> Iterator[tuple[str, object]]:
    """What has to be text in a message, with names for it."""
    yield "The topic", message.topic
    if message.tag is not None:
        yield "The tag", message.tag
    for key in message.keys:
        yield "A key", key
    for name, value in dict(message.properties).items():
        yield "The name of a property", name
        yield f"Property {name!r}", value
