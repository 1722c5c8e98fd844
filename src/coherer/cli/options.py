"""Options that several commands have, and what follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from coherer import blocking
    from coherer.blocking.rocketmq import RocketClient
    from coherer.client.admin import Admin

DEFAULT_URL = "tubemq://127.0.0.1:8715"
DEFAULT_TOKEN = "abc"  # noqa: S105 - what Java ships, and what our master begins with


def _url(given: str) -> str:
    """The URL that is meant: given, that of the environment, or that of `coherer serve`."""
    from coherer.client.address import usual

    return given or usual() or DEFAULT_URL


Url = Annotated[
    str,
    typer.Option(
        "--url",
        "-u",
        envvar="COHERER_URL",
        help="The cluster: tubemq://host:port, the masters, separated by commas, or "
        "rocketmq://host:port, the name servers. Default: the name servers of NAMESRV_ADDR if "
        f"that is set, else {DEFAULT_URL}. For TLS, tubemqs:// and rocketmqs://; "
        "SSL_CERT_FILE names an authority of your own.",
        callback=_url,
        show_default=False,
    ),
]
AdminUrl = Annotated[
    str | None,
    typer.Option(
        "--admin",
        envvar="COHERER_ADMIN",
        help="TubeMQ: HTTP administration of the master. Default: port 8080 of the host of --url.",
    ),
]
Token = Annotated[
    str,
    typer.Option(
        "--token",
        envvar="COHERER_TOKEN",
        help="TubeMQ: what the master wants to hear before changes.",
    ),
]
User = Annotated[
    str | None,
    typer.Option(
        "--user",
        envvar="COHERER_USER",
        help="Where the cluster authenticates; RocketMQ's access key.",
    ),
]
Password = Annotated[
    str | None,
    typer.Option(
        "--password",
        envvar="COHERER_PASSWORD",
        help="Better in the environment; RocketMQ's secret key.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="For programs: JSON on stdout.")]


def admin_url(url: str, given: str | None) -> str:
    """Where the administration is: as given, or port 8080 of every master in the URL.

    >>> admin_url("tubemq://a:8715,b:8715", None)
    'http://a:8080,http://b:8080'

    Raises:
        UsageError: the URL is none of a cluster.
    """
    if given is not None:
        return given
    from coherer.client.address import parse
    from coherer.client.admin import usual_url

    return usual_url(host for host, _ in parse(url).servers)


def is_rocketmq(url: str) -> bool:
    """Whether a URL is one of RocketMQ.

    >>> is_rocketmq("rocketmqs://a:9876"), is_rocketmq("tubemq://a")
    (True, False)
    """
    return url.startswith(("rocketmq://", "rocketmqs://"))


def open_admin(url: str, given: str | None, token: str) -> Admin:
    """TubeMQ's administration that the options mean."""
    from coherer.client.admin import Admin

    return Admin(admin_url(url, given), token)


def connect(url: str, user: str | None, password: str | None) -> blocking.Client | RocketClient:
    """The client that the options mean."""
    from coherer import blocking

    return blocking.connect(url, user=user, password=password)
