"""The public names and signatures are those in the files beside this one."""

from __future__ import annotations

import builtins
import collections.abc
import enum
import importlib
import re
import subprocess
import sys
import typing
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_public_surface_is_as_listed() -> None:
    command = [sys.executable, "tools/list_api.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


ELSEWHERE = {
    "Builder": "pyspark",
    "Column": "pyspark",
    "DataFrame": "pyspark",
    "Future": "concurrent.futures",
    "FutureReceipt": "coherer.blocking: the future of either protocol's receipt",
    "Node": "the server itself: tests of Coherer look into it, `EmbeddedNode` has the rest",
    "Path": "pathlib",
    "QueryIdleEvent": "pyspark",
    "QueryProgressEvent": "pyspark",
    "QueryStartedEvent": "pyspark",
    "QueryTerminatedEvent": "pyspark",
    "RecordBatch": "pyarrow",
    "RecordBatchReader": "pyarrow",
    "Span": "opentelemetry",
    "SparkSession": "pyspark",
    "StreamingQueryListener": "pyspark",
    "TracerProvider": "opentelemetry",
    "MeterProvider": "opentelemetry",
}
"""Types in public signatures that no public module of Coherer exports."""


def test_signatures_name_public_types_only() -> None:
    """Whoever annotates a variable with what a function takes or returns can import the type."""
    known = {*dir(builtins), *dir(typing), *dir(collections.abc), *dir(enum), *ELSEWHERE}
    texts: dict[str, str] = {}
    for file in sorted(Path(__file__).parent.glob("coherer*.txt")):
        known |= set(importlib.import_module(file.stem).__dict__.get("__all__", ()))
        texts[file.stem] = file.read_text("utf-8")
    known |= set(re.findall(r"(?m)^class (\w+)", "".join(texts.values())))
    private = {
        f"{module}: {line.strip()[:100]}": "a path"
        for module, text in texts.items()
        for line in text.splitlines()
        if re.search(r"\bcoherer(\.\w+)*\._", line)
    }
    for module, text in texts.items():
        for line in text.splitlines():
            signature = re.sub(r"'[^']*'|^ *[A-Z_0-9]+ = .*", "", line)
            for name in re.findall(r"(?<![\w.])_?[A-Z]\w*[a-z]\w*", signature):
                if name not in known or name.startswith("_"):
                    private.setdefault(name, f"{module}: {line.strip()[:100]}")
    assert private == {}
