"""Whether this process was forked: sockets, threads and locks of the parent are of no use in it.

`os.getpid` would tell as well, but it is a system call, and each send asks.
"""

from __future__ import annotations

import os
from typing import Final


class Forks:
    """The forks between the process that loaded this module and this one."""

    depth = 0
    """How many. An object remembers the depth at which it was made; a child is one deeper."""


FORKS: Final = Forks()


def _forked() -> None:
    Forks.depth += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
