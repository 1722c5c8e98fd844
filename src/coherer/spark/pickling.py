"""Pickles a data source's objects for Spark's workers, with an error if they lack the package.

Spark pickles readers and sinks on the driver, and pickle writes a class as its name. A worker whose
Python lacks this package would fail with a bare `ModuleNotFoundError`. So these objects are pickled
as a call of `unpack`, together with the code of that function: the worker runs it before it needs
the package, and its error has the reason and the remedy.
"""

from __future__ import annotations

import sys

from pyspark import cloudpickle

import coherer


def unpack(packed: bytes, version: str) -> object:
    """Unpack an object on a worker: its class and fields, from the driver's version of Coherer.

    Raises:
        ImportError: the worker's Python lacks the package, or has another version of it.
    """
    # Spark sends this function to workers by value, with the imports in its body.
    import pickle
    import platform
    import sys

    try:
        kind, fields = pickle.loads(packed)  # noqa: S301 - Spark unpickles what holds it
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"This Spark worker runs {sys.executable} on {platform.node()}, which cannot load "
            f"Coherer {version}: {error}. Install coherer[spark]=={version} there, or send an "
            "environment with --archives and set PYSPARK_PYTHON to its Python: "
            "docs/how-to/spark-cluster.md shows how."
        ) from error
    found = kind.__new__(kind)
    found.__dict__.update(fields)
    return found


class SentToWorkers:
    """The base of the objects that Spark pickles for its workers."""

    def __reduce__(self) -> tuple[object, ...]:
        """The call that unpacks it."""
        packed = cloudpickle.dumps((type(self), self.worker_fields()))  # type: ignore[no-untyped-call]
        return unpack, (packed, coherer.__version__)

    def worker_fields(self) -> dict[str, object]:
        """The fields that a worker needs."""
        return self.__dict__


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
