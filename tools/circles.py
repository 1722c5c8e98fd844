"""An import-linter contract: no circle of files, imports for type checkers included.

`lint-imports` runs it (`[tool.importlinter]` in `pyproject.toml`). A circle is printed as a chain:
each line is an import, and leads to the file of the next line. The last line leads to the first.

    coherer._net.limits        line 44: from coherer._net.connection import Connection
    coherer._net.connection    line 36: from coherer._net.limits import ConnectionLimits

Of circles that share a file, one is printed: cutting it may cut the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import cast

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, output


def circles(graph: ImportGraph) -> Iterator[list[str]]:
    """Find circles that have no module in common; each module imports the next one.

    >>> graph = ImportGraph()
    >>> for importer, imported in ["ab", "bc", "ca", "cb", "de"]:
    ...     graph.add_import(importer=importer, imported=imported)
    >>> list(circles(graph))
    [['b', 'c']]
    """
    imports = {one: graph.find_modules_directly_imported_by(one) for one in graph.modules}
    while True:
        try:
            TopologicalSorter(imports).prepare()
        except CycleError as error:
            found = _shortest(graph, cast("list[str]", error.args[1]))
            yield found
            for one in found:
                del imports[one]
            imports = {one: others - {*found} for one, others in imports.items()}
        else:
            return


def _shortest(graph: ImportGraph, circle: list[str]) -> list[str]:
    """The shortest circle through a module of a circle."""
    chains = [
        chain
        for one in circle
        for other in graph.find_modules_that_directly_import(one)
        if (chain := graph.find_shortest_chain(one, other))
    ]
    chain = min(chains, key=lambda chain: (len(chain), chain))
    first = chain.index(min(chain))
    return [*chain[first:], *chain[:first]]


def chain_text(graph: ImportGraph, circle: list[str]) -> str:
    """The imports of a circle, one a line."""
    width = max(map(len, circle))
    lines: list[str] = []
    for one, other in zip(circle, [*circle[1:], circle[0]], strict=True):
        details = graph.get_import_details(importer=one, imported=other)
        places = (f"line {each['line_number']}: {each['line_contents']}" for each in details)
        lines.append(f"{one:{width}}    {', '.join(places)}")
    return "\n".join(lines)


class NoCircles(Contract):
    """No circle of files."""

    type_name = "no_circles"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Find the circles."""
        del verbose
        found = [chain_text(graph, circle) for circle in circles(graph)]
        return ContractCheck(kept=not found, metadata={"circles": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the circles."""
        for circle in cast("list[str]", check.metadata["circles"]):
            output.print_error("These files import each other in a circle:")
            output.new_line()
            output.console.print(circle, markup=False, soft_wrap=True)
            output.new_line()
