"""The table of methods of an administration, without HTTP.

The server for it is `service`, which a node loads when the first client connects.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol, TypeAlias

import msgspec

from coherer._server.http.guard import ANONYMOUS, Authorization, Decision, Guard
from coherer._server.http.params import Answer, ParamError, Params, refused
from coherer._wire.tubemq.codes import NOT_ACTIVE
from coherer.errors import CohererError

_ILLEGAL: Final = "Bad request from client, illegal access, unauthorized request!"
SLOWED: Final = (
    "There were too many wrong passwords, signatures or tokens from this address or for this "
    "account. Nothing was checked this time; wait before you try again."
)

Headers: TypeAlias = "list[tuple[str, str]]"
Reply: TypeAlias = "tuple[int, Headers, bytes]"
Page: TypeAlias = "Callable[[], Awaitable[Reply]]"
Action: TypeAlias = "Callable[[Mapping[str, str]], Awaitable[Reply]]"
"""Takes the fields of a form."""


class SavedFiles(Protocol):
    """The writer of the files that a request may change; `changes` counts their changes.

    If it `loses_unsaved`, a change that could not be written is given up.
    """

    changes: int
    loses_unsaved: bool

    async def flush(self) -> None:
        """Wait until all earlier changes are on disk."""
        ...


class Method(msgspec.Struct, frozen=True):
    """A row of a table of methods.

    Args:
        call: takes the parameters and returns the response; `ParamError` and `CohererError` become
            responses that refuse.
        changes: whether it changes something and needs the token.
    """

    call: Callable[[Params], Answer]
    changes: bool = False


class Pages(msgspec.Struct, frozen=True):
    """Pages outside the administration's own paths.

    Args:
        open: pages for everyone, such as health checks, by path.
        guarded: pages for users who may query the administration, by path.
        actions: handlers of POSTs by users who may change something, by path.
        guard: decides who may do what.
    """

    open: Mapping[str, Page] = {}
    guarded: Mapping[str, Page] = {}
    actions: Mapping[str, Action] = {}
    guard: Guard | None = None


class AdminApp:
    """A table of methods.

    Args:
        methods: by name.
        guard: who may call them; everyone if None.
        closed: returns why no method is served now; None if they are.

    >>> app = AdminApp({"admin_ping": Method(lambda params: {"result": True})}, Guard("abc"))
    >>> app.handle("admin_ping", {})
    {'result': True}
    >>> app.handle("admin_pong", {})["errMsg"]
    'Bad request from client, unsupported method admin_pong!'
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        guard: Guard | None = None,
        *,
        closed: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._methods = methods
        self._guard = guard or Guard()
        self._closed = closed

    def changes(self, method: str) -> bool:
        """Whether a method changes something."""
        row = self._methods.get(method)
        return row is not None and row.changes

    def handle(
        self, method: str, params: Mapping[str, str], authorization: Authorization = ANONYMOUS
    ) -> Answer:
        """Call a method. Errors of the caller become responses that refuse."""
        given = Params(params)
        row = self._methods.get(method)
        if not method:
            return refused("Bad request from client, Please take with method parameter!")
        if row is None:
            return refused(f"Bad request from client, unsupported method {method[:100]}!")
        token = given.get("confModAuthToken")
        decision = self._guard.decide(token, authorization, changes=row.changes)
        if decision is not Decision.ALLOWED:
            return refused(SLOWED if decision is Decision.SLOWED else _ILLEGAL)
        reason = self._closed()
        if reason is not None:
            return refused(reason, NOT_ACTIVE)
        try:
            return row.call(given)
        except ParamError as error:
            return refused(str(error))
        except CohererError as error:
            return refused(error.text)
