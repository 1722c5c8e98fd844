"""How to test code that uses a queue, with the fixtures that the package provides.

`coherer_url` is the URL of a node that runs in the test process for the whole session;
`coherer_topic` is a new topic for each test.
"""

from collections.abc import Iterator

import pytest

import coherer
import coherer.blocking


class Shop:
    """The code under test."""

    def __init__(self, url: str, topic: str) -> None:
        self.url = url
        self.topic = topic

    def order(self, *goods: str) -> None:
        """Send an order."""
        with coherer.blocking.connect(self.url) as client, client.producer() as producer:
            producer.send_many(coherer.Message(self.topic, g.encode()) for g in goods).check()

    def packed(self, count: int) -> Iterator[str]:
        """Take `count` goods from the queue."""
        with (
            coherer.blocking.connect(self.url) as client,
            client.consumer("packers", self.topic, start="earliest") as consumer,
        ):
            for _, message in zip(range(count), consumer, strict=False):
                yield message.body.decode()


@pytest.fixture
def shop(coherer_url: str, coherer_topic: str) -> Shop:
    return Shop(coherer_url, coherer_topic)


def test_what_is_ordered_is_packed(shop: Shop) -> None:
    shop.order("apples", "pears")
    assert sorted(shop.packed(2)) == ["apples", "pears"]
