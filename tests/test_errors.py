from __future__ import annotations

import pickle

import pytest

from coherer import errors


def every_error() -> list[type[errors.CohererError]]:
    found: list[type[errors.CohererError]] = [errors.CohererError]
    for kind in found:
        found.extend(kind.__subclasses__())
    return [kind for kind in dict.fromkeys(found) if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", every_error())
def test_the_docstring_lists_every_class(kind: type[errors.CohererError]) -> None:
    assert errors.__doc__ is not None
    assert kind.__name__ in errors.__doc__


@pytest.mark.parametrize("kind", every_error())
def test_errors_can_be_pickled(kind: type[errors.CohererError]) -> None:
    error = kind("No.", server="h:1", topic="t", partition=3, code=403, hint="Ask.")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error) == "No. [code 403, server h:1, topic t, partition 3] Ask."
    assert vars(copy) == vars(error)


def test_timeouts_are_builtin_timeouts() -> None:
    with pytest.raises(TimeoutError):
        raise errors.RequestTimeoutError("Late.")
