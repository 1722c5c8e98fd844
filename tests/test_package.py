from __future__ import annotations

import subprocess
import sys

import coherer


def test_every_public_name_loads() -> None:
    for name in coherer.__all__:
        assert getattr(coherer, name).__module__.startswith("coherer")


def test_import_stays_light() -> None:
    # It takes about 10 ms and may take 60. A busy machine measures nothing: what would break it is
    # forbidden instead.
    out = subprocess.run(
        [sys.executable, "-c", "import sys, coherer; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert not {"asyncio", "google", "msgspec", "typer", "rich", "pyspark", "pyarrow"} & set(out)


def test_rooms_need_no_import_of_their_own() -> None:
    program = (
        "import coherer; print(coherer.blocking.connect('tubemq://a'), coherer.testing.Faults)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("<Client of tubemq://a:8715>")
    assert {"blocking", "errors", "spark", "testing"} <= set(dir(coherer))
