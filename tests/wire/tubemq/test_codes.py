from __future__ import annotations

import pickle

import pytest

from coherer._wire.tubemq.codes import ERRORS, ResultCode, refused
from coherer.errors import RefusedError

LOCAL = {402, 405, 406, 407, 408, 420, 421, 422, 440, 441, 442, 443, 444, 445, 599}
UNUSED = {423, 510}


def test_every_code_of_a_server_has_an_error_class() -> None:
    answered = {int(code) for code in ResultCode} - LOCAL - UNUSED - {ResultCode.SUCCESS}
    assert set(ERRORS) == answered
    assert len(ResultCode) == 42  # docs/protocol/tubemq.md, section 9


@pytest.mark.parametrize("code", ERRORS)
def test_refused_returns_the_error_of_a_code(code: int) -> None:
    error = refused(code, "no", server="b:1", topic="t", partition=7)
    assert type(error) is ERRORS[code]
    assert isinstance(error, RefusedError)
    assert (error.code, error.text, error.server) == (code, "no", "b:1")
    assert (error.topic, error.partition) == ("t", 7)
    assert f"({code})." in (type(error).__doc__ or "")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (type(error), str(error))


def test_an_empty_text_is_replaced_by_the_meaning_of_the_code() -> None:
    assert refused(410, "").text == ERRORS[410].meaning


def test_an_unknown_code_is_a_refused_error() -> None:
    error = refused(999, "")
    assert type(error) is RefusedError
    assert (error.code, str(error)) == (999, "The server refused the request. [code 999]")
