"""The version of this package, the same as in `pyproject.toml`."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.2.0"
