"""A clock that is not set: times that are compared, and shown as times of day."""

from __future__ import annotations

from coherer._common.clock import now_ms

__all__ = ["now_ms"]
