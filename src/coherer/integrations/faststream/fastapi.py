"""A router for FastAPI: handlers take its dependencies, and the broker starts with the application.

It stands on FastStream's own router for FastAPI, which FastStream has declared deprecated in favour
of the package `faststream_fastapi`; that package serves the brokers of FastStream only.
"""

# FastStream's brokers, routers and publishers have other parameters than their base classes,
# and their own brokers.
# pyright: reportIncompatibleMethodOverride=false
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, Unpack, cast, overload

from fastapi.datastructures import Default
from faststream._internal.context.repository import ContextRepo
from faststream._internal.fastapi.router import StreamRouter

from coherer.integrations.faststream.rocketmq import (
    NO_OPTIONS,
    RocketMQBatchPublisher,
    RocketMQBroker,
    RocketMQPublisherKeywords,
    RocketMQSubscriber,
    RocketMQSubscriberKeywords,
    RocketMQTopicPublisher,
)
from coherer.rocketmq import ProducerKeywords

NO_MODEL: Final[Any] = Default(None)


class RocketMQRouter(StreamRouter[Any]):
    """Subscribers and publishers of a FastAPI application.

    ```python
    router = RocketMQRouter("rocketmq://127.0.0.1:9876")
    app = FastAPI()
    app.include_router(router)


    @router.subscriber("orders", group_id="shop")
    async def handle(order: Order, db: Annotated[Database, Depends(database)]) -> None: ...
    ```

    Args:
        url: see `RocketMQBroker`.
        producer: see `RocketMQBroker`.
        context: the global context.
        options: those of `RocketMQBroker` and of FastAPI's `APIRouter`; `specification_tags`,
            `schema_url` and `setup_state` as FastStream's routers for FastAPI have them.
    """

    broker_class = RocketMQBroker
    broker: RocketMQBroker

    def __init__(
        self,
        url: str | None = None,
        *,
        producer: ProducerKeywords = NO_OPTIONS,
        context: ContextRepo | None = None,
        **options: Any,
    ) -> None:
        super().__init__(url, producer=producer, context=context, **options)

    def subscriber(  # type: ignore[override]
        self,
        *topics: str,
        response_model: Any = NO_MODEL,
        response_model_include: Any = None,
        response_model_exclude: Any = None,
        response_model_by_alias: bool = True,
        response_model_exclude_unset: bool = False,
        response_model_exclude_defaults: bool = False,
        response_model_exclude_none: bool = False,
        **options: Unpack[RocketMQSubscriberKeywords],
    ) -> RocketMQSubscriber:
        """Subscribe to topics; see `RocketMQBroker.subscriber`.

        Args:
            topics: the topics.
            response_model: as in FastAPI's routes, for what is published, like the next ones.
            response_model_include: see `response_model`.
            response_model_exclude: see `response_model`.
            response_model_by_alias: see `response_model`.
            response_model_exclude_unset: see `response_model`.
            response_model_exclude_defaults: see `response_model`.
            response_model_exclude_none: see `response_model`.
            options: see `RocketMQSubscriberKeywords`.
        """
        dependencies = options.pop("dependencies", ())
        made = super().subscriber(
            *topics,
            dependencies=dependencies,
            response_model=response_model,
            response_model_include=response_model_include,
            response_model_exclude=response_model_exclude,
            response_model_by_alias=response_model_by_alias,
            response_model_exclude_unset=response_model_exclude_unset,
            response_model_exclude_defaults=response_model_exclude_defaults,
            response_model_exclude_none=response_model_exclude_none,
            **cast("dict[str, Any]", options),
        )
        return cast("RocketMQSubscriber", made)

    @overload  # type: ignore[override]
    def publisher(
        self,
        topic: str,
        *,
        batch: Literal[False] = False,
        **options: Unpack[RocketMQPublisherKeywords],
    ) -> RocketMQTopicPublisher: ...

    @overload
    def publisher(
        self, topic: str, *, batch: Literal[True], **options: Unpack[RocketMQPublisherKeywords]
    ) -> RocketMQBatchPublisher: ...

    def publisher(
        self, topic: str, *, batch: bool = False, **options: Unpack[RocketMQPublisherKeywords]
    ) -> RocketMQTopicPublisher | RocketMQBatchPublisher:
        """Make a publisher; see `RocketMQBroker.publisher`."""
        make = cast("Callable[..., Any]", self.broker.publisher)
        return cast("RocketMQTopicPublisher", make(topic, batch=batch, **options))
