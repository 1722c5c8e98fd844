"""Lists the public names with their signatures in `tests/api/*.txt`, one file for each module.

    python tools/list_api.py           # write the files
    python tools/list_api.py --check   # exit with 1 if one of them is out of date

A test compares the files with the code, so a change of what users see shows in the diff of a
commit. Order is alphabetical; inherited members of Coherer's own classes are listed too.
"""

from __future__ import annotations

import argparse
import enum
import importlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec

TARGET = Path(__file__).parent.parent / "tests" / "api"
MODULES = (
    "coherer",
    "coherer.admin",
    "coherer.arrow",
    "coherer.tubemq",
    "coherer.rocketmq",
    "coherer.blocking",
    "coherer.blocking.tubemq",
    "coherer.blocking.rocketmq",
    "coherer.errors",
    "coherer.inlong",
    "coherer.message",
    "coherer.spark",
    "coherer.testing",
)
SPECIAL = {"__aiter__", "__iter__", "__len__", "__aenter__", "__enter__"}
"""Special methods that are listed: what a `for` or a `with` may be used on."""


def listing(name: str) -> str:
    """The public names of a module."""
    module = importlib.import_module(name)
    own = (
        one
        for one, value in vars(module).items()
        if not one.startswith("_") and getattr(value, "__module__", "") == name
    )
    names = sorted(getattr(module, "__all__", own))
    return "\n".join("\n".join(lines(one, getattr(module, one))) for one in names) + "\n"


def lines(name: str, value: object) -> Iterator[str]:
    """One public name: a line, and for a class one more for each member."""
    if isinstance(value, types.ModuleType):
        yield f"module {name}"
    elif isinstance(value, type):
        yield from of_class(name, value)
    elif inspect.isroutine(value):
        yield f"{kind_of(value)} {name}{signature(value)}"
    else:
        yield f"{name} = {plain(repr(value))}"


def of_class(name: str, value: type) -> Iterator[str]:
    """A class and its members."""
    bases = [
        one.__name__
        for one in value.__bases__
        if one is not object and not re.match(r"coherer(\.\w+)*\._", one.__module__)
    ]
    if typing.is_typeddict(value):
        yield f"class {name}(TypedDict)"
        members = (f"{key}: {annotation(text)}" for key, text in value.__annotations__.items())
    elif issubclass(value, enum.Enum):
        yield f"class {name}({', '.join(bases)})"
        members = (f"{one.name} = {one.value!r}" for one in value)
    elif issubclass(value, msgspec.Struct):
        yield f"class {name}{signature(value, fields_of(value))}"
        members = of_members(value, value.__struct_fields__)
    else:
        yield f"class {name}({', '.join(bases)})" if bases else f"class {name}"
        members = of_members(value)
    yield from (f"    {line}" for line in sorted(members))


def of_members(value: type, hidden: Collection[str] = ()) -> Iterator[str]:
    """The public members of a class."""
    about = re.search(r"\nAttributes:\n((?: {4}.*\n?)+)", inspect.getdoc(value) or "")
    yield from re.findall(r"(?m)^ {4}(\w+):", about.group(1) if about else "")
    for name in dir(value):
        owner = next((base for base in value.__mro__ if name in vars(base)), object)
        special = SPECIAL | ({"__init__"} if issubclass(value, Exception) else set())
        public = name in special or not name.startswith("_")
        if name in hidden or not public or not owner.__module__.startswith("coherer"):
            continue
        member = inspect.getattr_static(value, name)
        if isinstance(member, property):
            yield f"{name}: {returned(member.fget)}"
        elif isinstance(member, staticmethod | classmethod):
            yield f"{type(member).__name__} {name}{signature(member.__func__)}"
        elif inspect.isfunction(member) and member.__module__ != "coherer._common.renamed":
            for one in typing.get_overloads(member) or [member]:
                yield f"{kind_of(one)} {name}{signature(one)}"


def kind_of(value: object) -> str:
    """How a function is called."""
    return "async def" if inspect.iscoroutinefunction(inspect.unwrap(value)) else "def"


def fields_of(value: type) -> dict[str, object]:
    """The annotations of a struct as they are written, which `inspect` would evaluate."""
    found: dict[str, object] = {}
    for base in reversed(value.__mro__):
        found |= vars(base).get("__annotations__", {})
    return found


def signature(value: object, written: Mapping[str, object] | None = None) -> str:
    """Parameters and result; annotations as in the source, or as `written`."""
    if not callable(value):
        return ""
    try:
        found = inspect.signature(value)
    except ValueError:
        return "(...)"
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty, default=inspect.Parameter.empty)
        for parameter in found.parameters.values()
    ]
    texts: list[str] = []
    star = False
    for parameter, bare in zip(found.parameters.values(), parameters, strict=True):
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            texts.append("*")
        star = star or parameter.kind in {parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL}
        text = str(bare)
        if parameter.annotation is not parameter.empty:
            text += f": {annotation((written or {}).get(parameter.name, parameter.annotation))}"
        if parameter.default is not parameter.empty:
            text += f" = {plain(default(parameter.default))}"
        texts.append(text)
    result = found.return_annotation if written is None else inspect.Signature.empty
    end = "" if result is inspect.Signature.empty else f" -> {annotation(result)}"
    return f"({', '.join(texts)}){end}"


def default(value: object) -> str:
    """A default as text, the same in every process."""
    return value.__qualname__ if inspect.isfunction(value) else repr(value)


def returned(getter: object) -> str:
    """The type of a property."""
    annotations: dict[str, object] = getattr(getter, "__annotations__", {})
    return annotation(annotations.get("return", ""))


def annotation(value: object) -> str:
    """An annotation as text."""
    if isinstance(value, typing.ForwardRef):
        value = value.__forward_arg__
    if isinstance(value, str):
        return plain(value)
    return plain(value.__name__ if isinstance(value, type) else repr(value))


def plain(text: str) -> str:
    """Text without the private modules that types are defined in, and without addresses."""
    text = re.sub(r"\bForwardRef\('([^']*)'[^)]*\)", r"\1", text)
    text = re.sub(r"\bcoherer\.(_\w+\.)[\w.]*?(\w+)(?![\w.])", r"\2", text)
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def main() -> int:
    """Write the files, or check that they are up to date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, exit with 1 if stale")
    check: bool = parser.parse_args().check
    stale = 0
    TARGET.mkdir(exist_ok=True)
    for name in MODULES:
        path, text = TARGET / f"{name}.txt", listing(name)
        if not path.exists() or path.read_text("utf-8") != text:
            stale = 1
            print(f"{path} is out of date: run python tools/list_api.py" if check else path)
            if not check:
                path.write_text(text, "utf-8")
    return stale if check else 0


if __name__ == "__main__":
    sys.exit(main())
