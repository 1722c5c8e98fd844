"""The administration that the options mean, of either protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from coherer._common.masking import masked
from coherer.cli.options import DEFAULT_URL, is_rocketmq

if TYPE_CHECKING:
    from coherer._client.rocketmq.admin import Admin as RocketAdmin
    from coherer._client.tubemq.admin import Admin

T = TypeVar("T")

AnyAdmin: TypeAlias = "Admin | RocketAdmin"


class Whom(msgspec.Struct, frozen=True):
    """Whom to ask.

    Args:
        url: the cluster.
        admin: TubeMQ's HTTP administration, where it is given.
        token: what TubeMQ's administration needs for changes; None for the one that Java ships.
        user: the account; RocketMQ's access key.
        password: its password; RocketMQ's secret key.
    """

    url: str
    admin: str | None = None
    token: str | None = None
    user: str | None = None
    password: str | None = None

    def ask(self, work: Callable[[AnyAdmin], Awaitable[T]]) -> T:
        """Do some administration, and wait for it.

        Raises:
            CohererError: what the administration raises.
        """
        from coherer import _net as net

        return net.run(self._ask(work))

    async def _ask(self, work: Callable[[AnyAdmin], Awaitable[T]]) -> T:
        if is_rocketmq(self.url):
            from coherer.rocketmq import connect as connect_rocketmq

            async with connect_rocketmq(self.url, user=self.user, password=self.password) as rocket:
                return await work(rocket.admin())
        if self.admin is not None and self.url is DEFAULT_URL:
            # No cluster was named, only an administration: that one is meant.
            from coherer._client.tubemq.admin import Admin
            from coherer._client.tubemq.admin_calls import AUTHOR

            account = self.user or AUTHOR
            return await work(Admin(self.admin, self.token, user=account, password=self.password))
        from coherer.tubemq import connect as connect_tubemq

        async with connect_tubemq(
            self.url, user=self.user, password=self.password, admin=self.admin
        ) as client:
            return await work(client.admin(self.token))

    def __repr__(self) -> str:
        return masked(self, "token", "password")
