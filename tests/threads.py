"""The threads of blocking clients and of embedded nodes."""

from __future__ import annotations

import threading


def loop_threads() -> set[threading.Thread]:
    """The threads that run an event loop; nodes start others when they first flush."""
    return {thread for thread in threading.enumerate() if thread.name == "coherer"}
