"""The cluster that a command works on: its options, and calls of its administration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Concatenate, Final, ParamSpec, TypeAlias, TypeVar

import msgspec
import typer

from coherer import _net as net
from coherer import blocking
from coherer._client.engine.options import url_from_environment
from coherer._common.masking import masked
from coherer._common.urls import is_rocketmq
from coherer.cli.options import with_options

# A command loads the client of one protocol, which takes 0.1 s less than both.
if TYPE_CHECKING:
    from coherer._administration.access import Cluster
    from coherer._client.rocketmq.administration.admin import Admin as RocketAdmin
    from coherer._client.tubemq.administration.admin import Admin
    from coherer.blocking.rocketmq import Client as RocketClient

T = TypeVar("T")
P = ParamSpec("P")

AnyAdmin: TypeAlias = "Admin | RocketAdmin"

DEFAULT_URL: Final = "tubemq://127.0.0.1:8715"

DEFAULT_ROCKETMQ_URL: Final = "rocketmq://127.0.0.1:9876"
"""The RocketMQ port of the same node, for commands that TubeMQ does not support."""


def command_url(given: str | None) -> str:
    """The given URL, else that of the environment, else that of `coherer serve` on this machine."""
    return given or url_from_environment() or DEFAULT_URL


def rocketmq_command_url(given: str | None) -> str:
    """The same for a command that only RocketMQ supports.

    >>> import os
    >>> _ = os.environ.pop("COHERER_URL", None), os.environ.pop("NAMESRV_ADDR", None)
    >>> rocketmq_command_url(""), rocketmq_command_url("tubemq://a")
    ('rocketmq://127.0.0.1:9876', 'tubemq://a')
    """
    url = command_url(given)
    return DEFAULT_ROCKETMQ_URL if url is DEFAULT_URL else url


Url = Annotated[
    str,
    typer.Option(
        "--url",
        "-u",
        envvar="COHERER_URL",
        help="The cluster: tubemq://host:port with the masters, separated by commas, or "
        "rocketmq://host:port with the name servers. For TLS: tubemqs://, rocketmqs://; "
        "SSL_CERT_FILE names a certificate authority of your own. Default: the name servers in "
        f"NAMESRV_ADDR if it is set, else {DEFAULT_URL}.",
        callback=command_url,
        show_default=False,
    ),
]
RocketUrl = Annotated[
    str,
    typer.Option(
        "--url",
        "-u",
        envvar="COHERER_URL",
        help="The RocketMQ cluster: rocketmq://host:port with the name servers, separated by "
        "commas; rocketmqs:// for TLS. Default: the name servers in NAMESRV_ADDR if it is set, "
        f"else {DEFAULT_ROCKETMQ_URL}.",
        callback=rocketmq_command_url,
        show_default=False,
    ),
]
AdminUrl = Annotated[
    str | None,
    typer.Option(
        "--admin",
        envvar="COHERER_ADMIN",
        help="TubeMQ: HTTP administration of the master, http://host:port; without --url, the "
        "only server that is used. Default: the address that the master reports; Java's masters do "
        "not report it, and usually use port 8080.",
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="COHERER_TOKEN",
        help="TubeMQ: token for changes over HTTP. A node with accounts takes --user and "
        "--password instead. Default: abc, as in Java.",
    ),
]
User = Annotated[
    str | None,
    typer.Option(
        "--user",
        envvar="COHERER_USER",
        help="Account, if the cluster requires one; RocketMQ's access key.",
    ),
]
Password = Annotated[
    str | None,
    typer.Option(
        "--password",
        envvar="COHERER_PASSWORD",
        help="Password of the account, RocketMQ's secret key. Prefer the environment variable.",
    ),
]


def connect(
    url: str, user: str | None, password: str | None
) -> blocking.tubemq.Client | RocketClient:
    """A client with the connection options of a command."""
    if is_rocketmq(url):
        return blocking.rocketmq.connect(url, user=user, password=password)
    return blocking.tubemq.connect(url, user=user, password=password)


class AdminTarget(msgspec.Struct, frozen=True):
    """The cluster that the options of a command name, of either protocol."""

    url: Url = ""
    admin: AdminUrl = None
    token: Token = None
    user: User = None
    password: Password = None

    def run(self, work: Callable[[AnyAdmin], Awaitable[T]]) -> T:
        """Call the administration, and wait for the result."""
        return net.run(self._run(work))

    def run_on_cluster(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        """Call a function of `coherer._administration`, and wait for the result."""
        return net.run(self._run_on_cluster(work))

    async def _run_on_cluster(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        # Commands that need only one protocol do not load this, see above.
        from coherer._administration.access import TubeCluster, opened

        if self.admin is not None and self.url is DEFAULT_URL:
            # Only --admin was given: any cluster may answer there.
            from coherer.tubemq import connect as connect_tubemq  # one protocol, see above

            async with connect_tubemq(self.url, user=self.user, password=self.password) as client:
                return await work(TubeCluster(self.admin, client, self._http_admin(self.admin)))
        async with opened(
            self.url, user=self.user, password=self.password, admin=self.admin, token=self.token
        ) as cluster:
            return await work(cluster)

    def _http_admin(self, url: str) -> Admin:
        """The administration of `--admin` without a cluster."""
        # One protocol, see above.
        from coherer._client.tubemq.administration.admin import Admin
        from coherer._client.tubemq.administration.calls import AUTHOR

        return Admin(url, self.token, user=self.user or AUTHOR, password=self.password)

    async def _run(self, work: Callable[[AnyAdmin], Awaitable[T]]) -> T:
        if is_rocketmq(self.url):
            from coherer.rocketmq import connect as connect_rocketmq  # one protocol, see above

            async with connect_rocketmq(self.url, user=self.user, password=self.password) as rocket:
                return await work(rocket.admin())
        if self.admin is not None and self.url is DEFAULT_URL:
            # Only --admin was given.
            return await work(self._http_admin(self.admin))
        from coherer.tubemq import connect as connect_tubemq  # one protocol, see above

        async with connect_tubemq(
            self.url, user=self.user, password=self.password, admin=self.admin
        ) as client:
            return await work(client.admin(self.token))

    def __repr__(self) -> str:
        return masked(self, "token", "password")


def on_cluster(command: Callable[Concatenate[AdminTarget, P], None]) -> Callable[..., None]:
    """Give a command the options of a cluster that it reads, in place of its first parameter."""
    return with_options(AdminTarget, command, without=("token",))


def on_cluster_with_token(
    command: Callable[Concatenate[AdminTarget, P], None],
) -> Callable[..., None]:
    """The same with `--token`, which changes over TubeMQ need."""
    return with_options(AdminTarget, command)


def on_rocketmq(command: Callable[Concatenate[AdminTarget, P], None]) -> Callable[..., None]:
    """The same for a command that only RocketMQ supports."""
    return with_options(AdminTarget, command, without=("admin", "token"), url=RocketUrl)
