"""Sphinx builds the documentation site from this folder: `make docs`."""

from __future__ import annotations

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

autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
default_role = "code"

nitpicky = False
linkcheck_ignore = [r"http://(127\.0\.0\.1|localhost)"]


def _fences(*arguments: list[str]) -> None:
    """Turns the Markdown fences of a docstring into reStructuredText's code blocks."""
    lines = arguments[-1]
    language: str | None = None
    margin = ""
    for number, line in enumerate(lines):
        text = line.strip()
        if language is None and text.startswith("```"):
            language, margin = text[3:] or "text", line[: line.index("`")]
            lines[number] = f"{margin}.. code-block:: {language}\n"
        elif language is not None:
            lines[number] = "" if text == "```" else f"    {line}"
            language = None if text == "```" else language
    lines[:] = "\n".join(lines).split("\n")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _fences, priority=400)  # before napoleon
