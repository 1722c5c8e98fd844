"""What the tests of the kit share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _light_inner_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins that runs of pytest within tests do not need take a third of their time."""
    others = ("hypothesispytest", "randomly")
    monkeypatch.setenv("PYTEST_ADDOPTS", " ".join(f"-p no:{name}" for name in others))
