"""What is wrong with a selector, or with a message that it is asked about."""

from __future__ import annotations

from coherer.errors import CohererError, UsageError


class SelectorError(UsageError):
    """The text is no selector.

    Args:
        reason: Java's words for it.
        java_class: the exception that Java throws for it.
    """

    def __init__(self, reason: str, java_class: str = "java.lang.RuntimeException") -> None:
        super().__init__(
            f"No selector: {reason}",
            hint="Sections of SQL92 are in coherer._wire.rocketmq.selector.",
        )
        self.reason = reason
        self.java_class = java_class

    @property
    def remark(self) -> str:
        """What a broker answers: Java's exception and its words."""
        return f"{self.java_class}: {self.reason}"


class UnmatchableError(CohererError):
    """A selector compares what cannot be compared in this message: it does not match."""
