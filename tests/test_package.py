from __future__ import annotations

import subprocess
import sys
from types import ModuleType, UnionType

import coherer


def output_of(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout


def test_every_public_name_loads() -> None:
    for name in coherer.__all__:
        value = getattr(coherer, name)
        if not isinstance(value, UnionType):  # the alias of a union belongs to no module
            home = value.__name__ if isinstance(value, ModuleType) else value.__module__
            assert home.startswith("coherer")
    assert {*coherer.__all__, "errors"} <= set(dir(coherer))


def test_import_stays_light() -> None:
    # It takes about 10 ms; the limit is 60 ms. Timings on a busy machine mean little, so the test
    # forbids the modules that would break the limit.
    loaded = set(output_of("import sys, coherer; print(*sys.modules)").split())
    assert not {"asyncio", "google", "msgspec", "typer", "rich", "pyspark", "pyarrow"} & loaded


def test_a_client_of_one_protocol_does_not_load_the_other() -> None:
    for own, other in (("tubemq", "rocketmq"), ("rocketmq", "tubemq")):
        connect = f"coherer.blocking.connect('{own}://a').close()"
        loaded = output_of(f"import sys, coherer; {connect}; print(*sys.modules)").split()
        assert f"coherer._client.{own}.client" in loaded
        assert f"coherer._client.{other}.client" not in loaded


def test_submodules_need_no_import_of_their_own() -> None:
    program = (
        "import coherer; print(coherer.blocking.connect('tubemq://a'), coherer.testing.Faults)"
    )
    assert output_of(program).startswith("<Client of tubemq://a:8715>")
