"""The accounts of a node: those of clients, and those for the HTTP administration only."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from coherer._common.logs import Log
from coherer._server.options.node import NodeOptions
from coherer._server.rocketmq.acl import Access
from coherer.errors import UsageError

# Loaded with accounts or with the first request of HTTP.
if TYPE_CHECKING:
    from coherer._server.http.guard import Guard
    from coherer._server.http.operators import Operators

_log = Log(logging.getLogger(__name__))


class NodeAccounts:
    """Reads the account files, at the start and when they change.

    Attributes:
        access: the accounts of clients; None in a node without accounts.
        operators: the accounts for the HTTP administration only; None in a node without accounts.

    Raises:
        UsageError: a file is invalid, or others can read it.
    """

    def __init__(self, options: NodeOptions, now_ms: Callable[[], int]) -> None:
        self.access: Access | None = None
        self.operators: Operators | None = None
        self._now_ms = now_ms
        if not options.has_accounts:
            conf = options.accounts_home / "conf"
            if any((conf / name).exists() for name in ("plain_acl.yml", "administration.json")):
                _log.plain.warning(
                    "%s holds accounts, but the node does not require any: set `rocketmq_access`.",
                    conf,
                )
            return
        from coherer._server.http.operators import Operators

        self.access = Access(
            options.accounts_home,
            now_ms(),
            options.accounts,
            signed_queries=options.namesrv_signed_queries,
        )
        self.operators = Operators(options.accounts_home)

    def reload(self) -> None:
        """Read the files again; if one is invalid, its previous accounts stay valid."""
        if self.access is not None:
            self.access.reload()
        if self.operators is not None:
            try:
                if self.operators.load():
                    _log.info("Reloaded the accounts of the HTTP administration")
            except UsageError as error:
                _log.error("The HTTP administration keeps the previous accounts: %s", error)

    def guard(self, options: NodeOptions) -> Guard:
        """Make the guard of the HTTP administration."""
        from coherer._server.http.guard import Guard

        return Guard(
            options.http_token,
            None if self.access is None else self.access.passwords,
            self.operators,
            queries=options.protects("admin"),
            now_ms=self._now_ms,
        )
