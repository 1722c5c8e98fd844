"""Sphinx builds the documentation site from this folder: `make docs`."""

from __future__ import annotations

import re

from sphinx.application import Sphinx

import coherer

project = "Coherer"
author = "The Coherer developers"
copyright = "the Coherer developers"  # noqa: A001 - the name that Sphinx prescribes
version = release = coherer.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Coherer {release}"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

autodoc_mock_imports = ["airflow", "amqp", "celery", "dramatiq", "faststream", "kombu", "taskiq"]
"""What `coherer.integrations` plugs into; each has an environment of its own."""
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
default_role = "code"

nitpicky = False
suppress_warnings = [
    "myst.header",  # the protocol pages use deep headings for messages
    "ref.python",  # names that two modules export
]
linkcheck_ignore = [r"http://(127\.0\.0\.1|localhost)"]


def _from_markdown(*arguments: list[str]) -> None:
    """Turns the Markdown of a docstring into reStructuredText: fences, tables, code in a line."""
    lines = arguments[-1]
    out: list[str] = []
    language: str | None = None
    table = False
    for line in lines:
        text = line.strip()
        margin = line[: len(line) - len(line.lstrip())]
        if language is not None:
            out.append("" if text == "```" else f"    {line}")
            language = None if text == "```" else language
        elif text.startswith("```"):
            language = text[3:] or "text"
            out += [f"{margin}.. code-block:: {language}", ""]
        elif text.startswith("|") and text.endswith("|"):
            if not table:
                out += [f"{margin}.. list-table::", f"{margin}   :header-rows: 1", ""]
            table = True
            if set(text) != {"|", "-"}:
                first, *others = (cell.strip() for cell in text[1:-1].split("|"))
                out.append(f"{margin}   * - {_code(first)}")
                out += [f"{margin}     - {_code(cell)}" for cell in others]
        else:
            table = False
            out.append(line if text.startswith(">>>") else _code(line))
    lines[:] = out


def _code(line: str) -> str:
    return re.sub(r"(?<![`:])`([^`]+)`(?!`)", r"``\1``", line)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _from_markdown, priority=400)  # before napoleon
