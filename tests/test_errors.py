from __future__ import annotations

import importlib
import pickle
import re

import pytest

import coherer
from coherer import errors
from coherer._wire.rocketmq import codes as rocketmq_codes
from coherer._wire.tubemq import codes as tubemq_codes


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


def test_the_tree_is_that_of_the_classes() -> None:
    assert errors.__doc__ is not None
    parents: list[str] = []
    for prefix, name in re.findall(r"^([│├└─ ]*)(\w+Error)\b", errors.__doc__, re.MULTILINE):
        depth = len(prefix) // 4
        bases = [base.__name__ for base in getattr(errors, name).__bases__]
        assert bases[0] == (parents[depth - 1] if depth else "Exception")
        parents[depth:] = [name]


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.UsageError, ValueError),
        (errors.WindowFullError, BufferError),
        (errors.RequestTimeoutError, TimeoutError),
    ],
)
def test_some_are_builtin_errors_too(
    kind: type[errors.CohererError], builtin: type[Exception]
) -> None:
    with pytest.raises(builtin):
        raise kind("No.")


@pytest.mark.parametrize(
    ("public", "kinds"), [("rocketmq", rocketmq_codes.ERRORS), ("tubemq", tubemq_codes.ERRORS)]
)
def test_each_code_has_a_public_class(
    public: str, kinds: dict[int, type[errors.RefusedError]]
) -> None:
    for name in (f"coherer.{public}", f"coherer.blocking.{public}"):
        module = importlib.import_module(name)
        assert {kind.__name__ for kind in kinds.values()} <= set(module.__all__)
        assert all(getattr(module, kind.__name__) is kind for kind in kinds.values())


def test_a_missing_topic_has_a_class() -> None:
    with (
        coherer.testing.embedded_node() as node,
        coherer.blocking.rocketmq.connect(node.rocketmq_url) as client,
    ):
        with pytest.raises(coherer.rocketmq.TopicNotExistError) as caught:
            client.partitions("missing")
        assert caught.value.code == 17


def test_a_text_of_any_length_fits_into_a_log() -> None:
    """Servers and clients give reasons; one of them may be megabytes long."""
    error = errors.RefusedError("x" * 100_000, code=1, hint="Ask again.")
    assert len(str(error)) < 4_100
    assert str(error).endswith("x [96,000 more characters] [code 1] Ask again.")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
