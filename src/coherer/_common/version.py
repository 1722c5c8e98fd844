"""The version of this package. The build reads it from here."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.3.0"
