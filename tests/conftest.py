"""What every test shares."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Two profiles: one for every run, one for a long look (COHERER_HYPOTHESIS=exhaustive).
_UNHURRIED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("fast", max_examples=50, deadline=None, suppress_health_check=_UNHURRIED)
settings.register_profile(
    "exhaustive", max_examples=5_000, deadline=None, suppress_health_check=_UNHURRIED
)
settings.load_profile(os.environ.get("COHERER_HYPOTHESIS", "fast"))
