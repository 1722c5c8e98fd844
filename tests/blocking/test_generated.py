"""The blocking modules are generated from the asyncio classes, and complete."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import coherer

ROOT = Path(__file__).parent.parent.parent
PROTOCOLS = ("tubemq", "rocketmq")


def test_generated_modules_are_up_to_date() -> None:
    command = [sys.executable, "tools/generate_blocking.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def modules(protocol: str) -> tuple[ModuleType, ModuleType]:
    return getattr(coherer, protocol), getattr(coherer.blocking, protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_both_modules_have_the_same_names(protocol: str) -> None:
    asynchronous, blocking = modules(protocol)
    assert blocking.__all__ == asynchronous.__all__
    for name in blocking.__all__:
        assert getattr(blocking, name)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_method_of_a_blocking_class_is_asynchronous(protocol: str) -> None:
    _, blocking = modules(protocol)
    for name in blocking.__all__:
        kind = getattr(blocking, name)
        if inspect.isclass(kind) and kind.__module__ == blocking.__name__:
            for member in dir(kind):
                method = inspect.getattr_static(kind, member)
                assert not inspect.iscoroutinefunction(method), f"{name}.{member}"
                if not member.startswith("_"):
                    assert "await " not in (inspect.getdoc(method) or ""), f"{name}.{member}"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_public_classes_name_their_public_module(protocol: str) -> None:
    for module in modules(protocol):
        for name in ("Client", "Producer", "Consumer", "Reader", "Admin"):
            assert repr(getattr(module, name)) == f"<class '{module.__name__}.{name}'>"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_connect_takes_the_same_arguments(protocol: str) -> None:
    asynchronous, blocking = modules(protocol)
    ours, theirs = inspect.signature(blocking.connect), inspect.signature(asynchronous.connect)
    assert ours.parameters == theirs.parameters
