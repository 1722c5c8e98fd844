"""Changes over HTTP: who makes them, and the outcome for each record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import msgspec

from coherer._rules.tubemq.catalog import Catalog
from coherer._rules.tubemq.records import UNDEFINED, CatalogError, Change, OpCode
from coherer._rules.tubemq.registry import BrokerRegistry
from coherer._server.http.params import Answer, Json, ParamError, Params
from coherer._server.tubemq.master.admin_parameters import RECORDS_MAX
from coherer._server.tubemq.master.master import Master
from coherer._server.tubemq.master.state import MasterState

_USER_CHARS_MAX = 64


class AdminContext:
    """Access to the current state of a master.

    A standby that becomes active gets new tables, so they are looked up at every call.
    """

    def __init__(self, master: Master) -> None:
        self.master = master

    @property
    def state(self) -> MasterState:
        """The state of the master."""
        return self.master.state

    @property
    def catalog(self) -> Catalog:
        """The catalog of the master."""
        return self.master.state.catalog

    @property
    def broker_registry(self) -> BrokerRegistry:
        """The registered brokers."""
        return self.master.state.broker_registry

    def commit_changes(self) -> None:
        """Save changes and put them into effect.

        Raises:
            StoreError: the changes are in effect, but could not be saved.
        """
        self.state.commit_changes()


def create_change(context: AdminContext, params: Params) -> Change:
    """The author of a new record, from `createUser`.

    Raises:
        ParamError: the parameter is missing.
    """
    return _change(context, params, "createUser")


def update_change(context: AdminContext, params: Params) -> Change:
    """The author of a change, from `modifyUser`.

    Raises:
        ParamError: the parameter is missing.
    """
    return _change(context, params, "modifyUser")


def _change(context: AdminContext, params: Params, who: str) -> Change:
    context.state.require_active("HTTP")
    version = params.number("dataVersionId")
    return Change(
        user=params.required(who)[:_USER_CHARS_MAX],
        now_ms=context.state.wall_ms(),
        data_version=UNDEFINED if version is None else version,
    )


def outcomes(
    items: Iterable[Mapping[str, Json]], apply: Callable[[Mapping[str, Json]], object]
) -> Answer:
    """Apply a change to every item, and report the outcome of each.

    Args:
        items: the members that name each item in the answer.
        apply: applies the change; a `CatalogError` becomes the outcome of the item.
    """
    data: list[Json] = []
    for item in items:
        outcome: Answer = {**item, "success": True, "errCode": 200, "errInfo": "Ok!"}
        try:
            apply(item)
        except CatalogError as error:
            outcome |= {"success": False, "errCode": error.code, "errInfo": error.text}
        data.append(outcome)
    return {"result": True, "errCode": 0, "errMsg": "OK", "data": data, "count": len(data)}


Step: TypeAlias = "tuple[Answer, Callable[[], object]]"
"""The members that name a record in the answer, and the change to apply to it."""


Plan: TypeAlias = "Callable[[Params], Iterable[Step]]"
"""Turns parameters into steps, without applying them."""


def execute(context: AdminContext, steps: Iterable[Step]) -> Answer:
    """Apply the steps, save the changes, and report the outcome of each step.

    Raises:
        StoreError: the changes are in effect, but could not be saved.
    """
    pending = list(steps)
    changes = iter([apply for _, apply in pending])
    answer = outcomes([item for item, _ in pending], lambda _: next(changes)())
    context.commit_changes()
    return answer


def execute_batch(context: AdminContext, params: Params, name: str, plan: Plan) -> Answer:
    """Apply a method to every item of a JSON array of parameters.

    All items are checked before any change is applied. If several items name one record, the last
    one is used.

    Args:
        plan: turns one item into steps.

    Raises:
        ParamError: an item is not valid; nothing was changed.
        StoreError: the changes are in effect, but could not be saved.
    """
    steps: dict[bytes, Step] = {}
    for record in params.records(name):
        for item, apply in plan(record):
            steps[msgspec.json.encode(item)] = item, apply
    if len(steps) > RECORDS_MAX:
        raise ParamError(f"{len(steps)} records; {RECORDS_MAX} are allowed in one call")
    return execute(context, steps.values())


def unchanged_error(text: str) -> CatalogError:
    """The outcome of a change that has no effect."""
    return CatalogError(OpCode.UNCHANGED, text)
