"""Clients, brokers and accounts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from coherer._administration.access import RocketCluster
from coherer.admin import Broker
from coherer.console.history import series_name
from coherer.console.pages.common import Console, changing, matching, part_of
from coherer.errors import UsageError

PERMISSIONS: Final = ("DENY", "PUB", "SUB", "PUB|SUB")


class Servers:
    """Handlers of clients, brokers and accounts."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def routes(self) -> list[Route]:
        console = self._console
        return [
            Route("/clients", self.clients, methods=["GET"]),
            Route("/brokers", self.brokers, methods=["GET"]),
            Route("/brokers/{broker}", self.broker, methods=["GET"]),
            Route("/accounts", self.accounts, methods=["GET"]),
            Route("/accounts", changing(console, self.save_account), methods=["POST"]),
            Route("/accounts/{account}/delete", changing(console, self.drop), methods=["POST"]),
        ]

    async def clients(self, request: Request) -> Response:
        """The connected consumers by group, and the producers of a group."""
        console = self._console
        search = request.query_params.get("q", "")
        names = matching(await console.facts.group_names(), search)
        part = part_of(names, request.query_params.get("page"))
        producer_group = request.query_params.get("producers", "").strip()
        producers = await console.facts.producers(producer_group) if producer_group else None
        return console.render(
            request,
            "clients.html",
            part=part,
            members=await console.facts.members(part.rows),
            search=search,
            producer_group=producer_group,
            producers=producers,
        )

    async def brokers(self, request: Request) -> Response:
        """The brokers, and the rates of the cluster."""
        console = self._console
        brokers = await console.facts.brokers()
        names = [one.name for one in brokers if one.role == "master"]
        written = {series_name("broker", name, "in"): f"{name}: written" for name in names}
        read = {series_name("broker", name, "out"): f"{name}: delivered" for name in names}
        return console.render(
            request,
            "brokers.html",
            brokers=brokers,
            rates=console.chart(request, "Messages per second", written | read) if names else None,
        )

    async def broker(self, request: Request) -> Response:
        """One broker: its reported values and its settings."""
        console = self._console
        name = request.path_params["broker"]
        found = [one for one in await console.facts.brokers() if one.name == name]
        if not found:
            return console.refusal(request, f"The broker {name} does not exist.", 404)
        settings = await console.facts.settings(name) if found[0].role == "master" else None
        found = [_permitted(one, settings) for one in found]
        return console.render(
            request, "broker.html", name=name, brokers=found, settings=_shown(settings)
        )

    async def accounts(self, request: Request) -> Response:
        """The accounts of the cluster."""
        accounts = await self._console.facts.accounts()
        return self._console.render(
            request,
            "accounts.html",
            accounts=accounts,
            permissions=PERMISSIONS,
            user=self._console.options.user,
        )

    async def save_account(self, request: Request, form: FormData) -> Response:
        """Create or change an account of a RocketMQ cluster."""
        del request
        default_topic, default_group = str(form.get("topics", "")), str(form.get("groups", ""))
        if not {default_topic, default_group} <= set(PERMISSIONS):
            raise UsageError("Select the permissions of the account.")
        await self._rocket().admin.accounts.set(
            str(form.get("name", "")).strip(),
            str(form.get("secret", "")),
            admin=form.get("admin") == "1",
            address=str(form.get("address", "")).strip(),
            default_topic_perm=default_topic,
            default_group_perm=default_group,
            topic_perms=str(form.get("topic_perms", "")).split(),
            group_perms=str(form.get("group_perms", "")).split(),
        )
        return self._console.done("/accounts", "account-saved")

    async def drop(self, request: Request, form: FormData) -> Response:
        """Delete an account of a RocketMQ cluster."""
        name = request.path_params["account"]
        if str(form.get("confirm", "")).strip() != name:
            raise UsageError(f"Type {name} to confirm; nothing was deleted.")
        await self._rocket().admin.accounts.delete(name)
        return self._console.done("/accounts", "account-deleted")

    def _rocket(self) -> RocketCluster:
        cluster = self._console.facts.rocket
        if cluster is None:
            raise UsageError("The console cannot change the accounts of a TubeMQ cluster.")
        return cluster


def _permitted(broker: Broker, settings: Mapping[str, str] | None) -> Broker:
    """Set whether a RocketMQ master is readable and writable, from its settings."""
    permission = (settings or {}).get("brokerPermission", "")
    if broker.role != "master" or not permission.isdecimal():
        return broker
    bits = int(permission)
    return msgspec.structs.replace(broker, readable=bool(bits & 4), writable=bool(bits & 2))


_SECRET_WORDS: Final = ("secret", "password", "passwd", "token", "accesskey", "privatekey")


def _shown(settings: dict[str, str] | None) -> dict[str, str] | None:
    """Return the settings, with those masked that may be secret.

    >>> _shown({"brokerName": "a", "aclSecretKey": "x"})
    {'aclSecretKey': '***', 'brokerName': 'a'}
    """
    if settings is None:
        return None
    return {
        name: "***" if value and any(word in name.lower() for word in _SECRET_WORDS) else value
        for name, value in sorted(settings.items())
    }
