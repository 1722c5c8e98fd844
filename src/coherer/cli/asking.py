"""The administration that the options mean, of either protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from coherer.cli.options import admin_url, is_rocketmq
from coherer.errors import ConnectError

if TYPE_CHECKING:
    from coherer.client.admin import Admin
    from coherer.client.rocketmq.admin import Admin as RocketAdmin

T = TypeVar("T")

AnyAdmin: TypeAlias = "Admin | RocketAdmin"


class Whom(msgspec.Struct, frozen=True):
    """Whom to ask.

    Args:
        url: the cluster.
        admin: TubeMQ's HTTP administration, where it is given.
        token: what TubeMQ's master wants to hear before changes.
        user: RocketMQ's access key.
        password: its secret key.
    """

    url: str
    admin: str | None = None
    token: str = ""
    user: str | None = None
    password: str | None = None

    def ask(self, work: Callable[[AnyAdmin], Awaitable[T]]) -> T:
        """Do some administration, and wait for it.

        Raises:
            CohererError: what the administration raises.
        """
        from coherer import net

        return net.run(self._ask(work))

    async def _ask(self, work: Callable[[AnyAdmin], Awaitable[T]]) -> T:
        if not is_rocketmq(self.url):
            from coherer.client.admin import Admin

            try:
                return await work(Admin(admin_url(self.url, self.admin), self.token))
            except ConnectError as error:
                if self.admin is None:
                    error.hint += " If the administration is elsewhere, say so by --admin."
                raise
        from coherer.client import connect_rocketmq

        async with connect_rocketmq(self.url, user=self.user, password=self.password) as client:
            return await work(client.admin())
