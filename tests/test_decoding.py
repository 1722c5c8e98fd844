"""Struct types that several threads decode first."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
from __future__ import annotations

import sys
import threading
import types

from coherer._common.decoding import convert, decoder

SOURCE = '''
from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class Item(msgspec.Struct):
    a: int
    b: str
    c: list[int]
    d: dict[str, float]
    e: str | None


class Answer(msgspec.Struct, Generic[T]):
    data: list[T]
'''
ITEM = {"a": 1, "b": "x", "c": [1], "d": {"a": 1.5}, "e": None}
TEXT = b'{"data":[{"a":1,"b":"x","c":[1],"d":{"a":1.5},"e":null}]}'

sys.setswitchinterval(1e-6)
read = []
for number in range(100):
    module = types.ModuleType(f"module_{number}")
    sys.modules[module.__name__] = module
    exec(SOURCE, module.__dict__)
    begin = threading.Barrier(4)

    def work(turn: int) -> None:
        begin.wait()
        if turn % 2:
            read.append(decoder(module.Answer[module.Item]).decode(TEXT).data[0].a)
        else:
            read.append(convert(ITEM, module.Item).a)

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
assert read == [1] * 400
"""


def test_threads_may_decode_a_type_at_the_same_time_for_the_first_time() -> None:
    """In a process of its own: `msgspec.json.decode` in place of `decoder` crashes it."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=120)
