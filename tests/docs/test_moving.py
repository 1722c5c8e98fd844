"""Each call, option and name on the page about moving from other clients exists as written."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import coherer

PAGE = Path(__file__).parents[2] / "docs/how-to/moving.md"
OBJECTS = {
    "producer": ("Producer",),
    "client": ("Client",),
    "consumer": ("Consumer", "PullConsumer"),
    "batch": ("ReceivedBatch", "Batch"),
    "message": ("ReceivedMessage",),
}


def rows() -> Iterator[tuple[ModuleType, str]]:
    """The code spans in the right columns, each with the module of its section."""
    module: ModuleType = coherer
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            names = {"RocketMQ": coherer.rocketmq, "TubeMQ": coherer.tubemq}
            module = next((names[word] for word in names if word in line), coherer)
        cells = re.split(r"(?<!\\)\|", line)
        if len(cells) == 4 and "---" not in line and cells[2].strip() != "Coherer":
            for span in re.findall(r"`([^`]+)`", cells[2]):
                yield module, span.replace("\\|", "|")


@pytest.mark.parametrize(
    ("module", "span"), [*rows()], ids=lambda value: getattr(value, "__name__", value)
)
def test_it_exists(module: ModuleType, span: str) -> None:
    if ("://" in span and "(" not in span) or span == "datetime":
        return  # a URL, and a type of Python's
    if re.fullmatch(r'"[^"]+"', span):
        return  # another value of the option before it
    text = (
        span.replace("…", "...")
        .removeprefix("async for batch in ")
        .removeprefix("async for message in ")
    )
    if text == "async for":
        assert any(hasattr(kind, "__aiter__") for kind in kinds(module, "consumer"))
        return
    if re.match(r"\w+=", text):
        text = f"options({text})"
    tree = ast.parse(text.removeprefix("await "), mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            check_call(module, node)
    if isinstance(tree.body, ast.Name):
        assert tree.body.id in known(module), f"{tree.body.id} is no option or method"


def check_call(module: ModuleType, call: ast.Call) -> None:
    keywords = {word.arg: None for word in call.keywords if word.arg}
    places = [
        None for word in call.args if not isinstance(word, ast.Constant) or word.value is not ...
    ]
    if isinstance(call.func, ast.Name) and call.func.id == "options":
        assert keywords.keys() <= known(module)
        return
    candidates = callees(module, call.func)
    assert candidates, f"nothing is called {ast.unparse(call.func)}"
    problems = [problem(one, places, keywords) for one in candidates]
    assert not all(problems), problems


def problem(function: Any, places: list[None], keywords: dict[str, None]) -> str:
    signature = inspect.signature(function)
    try:
        bound = signature.bind_partial(*places, **keywords)
    except TypeError as error:
        return str(error)
    unpacked = [one for one in signature.parameters.values() if one.kind is one.VAR_KEYWORD]
    extra = {name for one in unpacked for name in bound.arguments.get(one.name, {})}
    unknown = extra - options()
    return f"no options {unknown}" if unknown else ""


def callees(module: ModuleType, function: ast.expr) -> list[Any]:
    if isinstance(function, ast.Attribute):
        owner = ast.unparse(function.value)
        if owner.startswith("coherer"):
            return [eval(ast.unparse(function), {"coherer": coherer})]
        return [
            getattr(kind, function.attr)
            for kind in kinds(module, owner)
            if hasattr(kind, function.attr)
        ]
    assert isinstance(function, ast.Name)
    if hasattr(module, function.id):
        return [getattr(module, function.id)]
    return [
        getattr(kind, function.id)
        for kind in kinds(module, "producer")
        if hasattr(kind, function.id)
    ]


def kinds(module: ModuleType, owner: str) -> list[type]:
    # What one protocol has is named "(RocketMQ)" in the section for both.
    modules = [coherer, coherer.rocketmq] if module is coherer else [module]
    return [getattr(one, name) for one in modules for name in OBJECTS[owner] if hasattr(one, name)]


def options() -> set[str]:
    found: set[str] = set()
    for module in (coherer.rocketmq, coherer.tubemq, coherer):
        for name in dir(module):
            if name.endswith("Keywords"):
                found |= getattr(module, name).__annotations__.keys()
    return found


def known(module: ModuleType) -> set[str]:
    """Names of options, methods, and parameters of methods."""
    found = options()
    for owner in OBJECTS:
        for kind in kinds(module, owner):
            for name, member in inspect.getmembers(kind, callable):
                if not name.startswith("_"):
                    found |= {name, *inspect.signature(member).parameters}
    return found
