"""The offsets of a topic while some of its brokers are away; for Spark's streams."""

from __future__ import annotations

from typing import Any

from coherer._client.engine.present import PresentOffsets
from coherer.blocking._portal import ClientFacade


def present_offsets(client: ClientFacade[Any], topic: str) -> PresentOffsets[Any]:
    """Return the offsets at the brokers that answer, and the errors of the others.

    Raises:
        CohererError: see `offsets` of the client.
    """
    portal = client._portal  # pyright: ignore[reportPrivateUsage] - same package
    inner = client._inner  # pyright: ignore[reportPrivateUsage] - same package
    found: PresentOffsets[Any] = portal.call(lambda: inner._present_offsets(topic))
    return found
