"""SQL92 selectors: which messages a consumer takes, by their properties (7.2 to 7.4).

>>> selector = compile_selector("carrier = 'UA' AND delay > 15")
>>> selector.matches({"carrier": "UA", "delay": "20"}), selector.matches({"carrier": "UA"})
(True, False)

They mean what they mean on Java's brokers, the surprises too: `NOT a = 3` is `(NOT a) = 3`, what
follows a complete expression is not looked at (`a LIKE 'x'` is `a`), and text is compared with a
number by reading it as exactly that kind of number (`3.5` never matches `> 3`, but `> 3.0`).

Rooms: `grammar.lark` and `parsing` (text to tree), `values` (how values compare), `nodes` (a tree
that can be evaluated), `building` (tree to nodes, with the checks of 7.3), `selector` (what users
call, with the cache).
"""

from __future__ import annotations

from coherer._wire.rocketmq.selector.compiler import CACHED, Selector, compile_selector
from coherer._wire.rocketmq.selector.evaluation import SelectorError, UnmatchableError

__all__ = ["CACHED", "Selector", "SelectorError", "UnmatchableError", "compile_selector"]
