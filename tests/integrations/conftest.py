"""The fixtures that the tests of several plugs share: the address of what they test."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def coherer_rocketmq_url(coherer_rocketmq_url: str) -> str:
    """The URL of the session's node, or `COHERER_PLUGS_URL`: another cluster, by hand."""
    return os.environ.get("COHERER_PLUGS_URL", coherer_rocketmq_url)


@pytest.fixture
def url(coherer_rocketmq_url: str) -> str:
    """The address of the cluster."""
    return coherer_rocketmq_url
