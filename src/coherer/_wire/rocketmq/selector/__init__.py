"""SQL92 selectors of messages by their properties (docs/protocol/rocketmq.md, sections 7.2 to 7.4).

>>> selector = compile_selector("carrier = 'UA' AND delay > 15")
>>> selector.matches({"carrier": "UA", "delay": "20"}), selector.matches({"carrier": "UA"})
(True, False)

Their meaning is that of Java's brokers, including the surprises: `NOT a = 3` is `(NOT a) = 3`, text
after a complete expression is ignored (`a LIKE 'x'` is `a`), and to be compared with a number, text
is parsed as exactly that kind of number (`3.5` never matches `> 3`, but `> 3.0`).

`grammar.lark` is the grammar. `compiler` parses a text, checks it and builds nodes; `evaluation`
defines the nodes and how values compare.
"""

from __future__ import annotations

from coherer._wire.rocketmq.selector.compiler import (
    CACHED,
    CompiledSelector,
    compile_selector,
    ignored_rest,
)
from coherer._wire.rocketmq.selector.evaluation import SelectorError, UnmatchableError

__all__ = [
    "CACHED",
    "CompiledSelector",
    "SelectorError",
    "UnmatchableError",
    "compile_selector",
    "ignored_rest",
]
