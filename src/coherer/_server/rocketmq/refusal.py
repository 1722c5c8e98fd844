"""Saying no over RocketMQ's remoting: a response code and a remark."""

from __future__ import annotations

from collections.abc import Mapping


class Refusal(Exception):  # noqa: N818 - an answer, not a failure of ours
    """A request is refused; `RemotingServer` makes the response.

    Args:
        code: the response code (section 2.2).
        remark: why, in the words of 4.9 where clients look at them.
        fields: the response's header fields, where a refusal has some.
    """

    def __init__(
        self, code: int, remark: str | None = None, fields: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
        self.fields = dict(fields or {})
