"""What the administrations of both protocols are made of: parts, such as `admin.topics`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from coherer._common.renamed import moved


class Part:
    """A part of an administration. Before 0.3 it was a method of the same name."""

    _INSTEAD: ClassVar[str] = ""
    """The method that does what a call of the part did, `topics.list` for example."""

    if not TYPE_CHECKING:

        def __call__(self, *args: object, **options: object) -> object:
            name, _, method = self._INSTEAD.partition(".")
            return moved(self, name, {name: method})(*args, **options)


class Parts:
    """An administration of parts, which had all their methods itself before 0.3."""

    _MOVED: ClassVar[Mapping[str, str]] = {}
    """By old name, the part and its method: `create_topic` is `topics.create`."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            return moved(self, name, self._MOVED)
