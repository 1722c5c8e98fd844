"""Options that several commands have, and what follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from coherer import blocking
    from coherer.blocking.rocketmq import Client as RocketClient

DEFAULT_URL = "tubemq://127.0.0.1:8715"


def _url(given: str) -> str:
    """The URL that is meant: given, that of the environment, or that of `coherer serve`."""
    from coherer._client.engine.options import usual

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
        help="TubeMQ: HTTP administration of the master, http://host:port. Default: where the "
        "master of --url says; Java's masters do not say, it is their port 8080 then. Without "
        "--url, whatever answers there is asked.",
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="COHERER_TOKEN",
        help="TubeMQ: the token that the administration needs for changes. Default: abc, which "
        "Java ships. A node with accounts takes --user and --password instead.",
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


def is_rocketmq(url: str) -> bool:
    """Whether a URL is one of RocketMQ.

    >>> is_rocketmq("rocketmqs://a:9876"), is_rocketmq("tubemq://a")
    (True, False)
    """
    return url.startswith(("rocketmq://", "rocketmqs://"))


def connect(
    url: str, user: str | None, password: str | None
) -> blocking.tubemq.Client | RocketClient:
    """The client that the options mean."""
    from coherer import blocking

    if is_rocketmq(url):
        return blocking.rocketmq.connect(url, user=user, password=password)
    return blocking.tubemq.connect(url, user=user, password=password)
