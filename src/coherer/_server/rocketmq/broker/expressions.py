"""What decides for the broker whether a message fits an expression, and its bits (3.11, 7.2)."""

from __future__ import annotations

from typing import Final

from coherer._rules.rocketmq.consumer_filters import BloomBits, Compiled, ConsumerFilters
from coherer._wire.rocketmq.subscription import BloomFilter
from coherer.errors import UsageError

SQL92: Final = "SQL92"
_BLOOM: Final = BloomFilter()


def compile_expression(expression: str, kind: str) -> Compiled:
    """Make an expression ready.

    Args:
        expression: its text.
        kind: its type.

    Raises:
        UsageError: it is wrong, or nobody knows the type.

    >>> compile_expression("a > 5", "SQL92")({"a": "6"})
    True
    >>> compile_expression("a", "XPATH")
    Traceback (most recent call last):
    coherer.errors.UsageError: Nobody can compile an expression of type 'XPATH'.
    """
    if kind != SQL92:
        raise UsageError(f"Nobody can compile an expression of type {kind!r}.")
    from coherer._wire.rocketmq.selector import (
        compile_selector,  # loads a grammar: not at every start
    )

    return compile_selector(expression).evaluate


def expression_fault(expression: str, kind: str) -> str | None:
    """What the broker answers to a client that wants to filter so; None when it can.

    >>> expression_fault("a BETWEEN 5 AND 1", "SQL92")
    'java.lang.RuntimeException: Illegal values of between, left value(5) must less than or equal \
to right value(1)'
    """
    try:
        compile_expression(expression, kind)
    except UsageError as error:
        from coherer._wire.rocketmq.selector import SelectorError

        return error.remark if isinstance(error, SelectorError) else error.text
    return None


def new_filters() -> ConsumerFilters:
    """Filters of a broker that has none yet."""
    return ConsumerFilters(compile_expression, bloom_bits)


def bloom_bits(text: str) -> BloomBits:
    """The bits of a text in the filter that Java's brokers have by default.

    >>> bloom_bits("GID_PY#T1")
    BloomBits(bit_num=112, bit_pos=(5, 12, 92))
    """
    return BloomBits(_BLOOM.bits, _BLOOM.positions(text))
