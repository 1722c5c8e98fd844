"""`lint-imports` refuses circles of files, and prints them with the lines of their imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONTRACT = """
[tool.importlinter]
root_packages = ["knotted"]
contract_types = ["no_circles: tools.circles.NoCircles"]

[[tool.importlinter.contracts]]
name = "No circle of files"
type = "no_circles"
"""


def lint(directory: Path, files: dict[str, str]) -> tuple[int, list[str]]:
    """The exit code of `lint-imports` for a package with these files, and the printed lines."""
    for name, text in {"__init__.py": "", **files}.items():
        path = directory / "knotted" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (directory / "pyproject.toml").write_text(CONTRACT)
    result = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=directory, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return result.returncode, result.stdout.splitlines()


def test_a_circle_is_a_chain_of_imports(tmp_path: Path) -> None:
    files = {
        "a.py": "from knotted import b\n",
        "b.py": "if TYPE_CHECKING:\n    from knotted.part import c\n",
        "part/__init__.py": "",
        "part/c.py": "def work():\n    import knotted.a\n",
        "d.py": "import knotted.a\n",
    }
    code, lines = lint(tmp_path, files)
    assert code == 1
    chain = [line for line in lines if line.startswith("knotted")]
    assert chain == [
        "knotted.a         line 1: from knotted import b",
        "knotted.b         line 2: from knotted.part import c",
        "knotted.part.c    line 2: import knotted.a",
    ]


def test_a_package_and_its_module_can_be_a_circle(tmp_path: Path) -> None:
    files = {"__init__.py": "from knotted.a import x", "a.py": "from knotted import y"}
    code, lines = lint(tmp_path, files)
    assert code == 1
    assert "knotted.a    line 1: from knotted import y" in lines
