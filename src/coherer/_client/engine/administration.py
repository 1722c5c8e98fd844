"""Parts of an administration, such as `admin.topics`: their bases for both protocols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from coherer._common.renamed import moved


class Part:
    """A part of an administration. Most were methods of the same name before 0.3."""

    _INSTEAD: ClassVar[str] = ""
    """What replaces a call of the part, `topics.list` for example; "" if it never was a method."""

    if not TYPE_CHECKING:

        def __call__(self, *args: object, **options: object) -> object:
            name, _, method = self._INSTEAD.partition(".")
            if not method:
                raise TypeError(f"{type(self).__name__!r} object is not callable")
            return moved(self, name, {name: method})(*args, **options)


class Parts:
    """An administration of parts, which had all their methods itself before 0.3."""

    _MOVED: ClassVar[Mapping[str, str]] = {}
    """By old name, the part and its method: `create_topic` is `topics.create`."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            return moved(self, name, self._MOVED)
