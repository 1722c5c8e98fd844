from __future__ import annotations

from urllib.parse import quote_plus

from hypothesis import given
from hypothesis import strategies as st

from coherer._wire.tubemq import credentials

NOW = 1700000000000
words = st.text(st.characters(codec="utf-8"))


@given(words, words, st.integers(0, 2**53), st.integers(0, 2**31 - 2))
def test_signatures_can_be_verified(user: str, password: str, time: int, nonce: int) -> None:
    info = credentials.authenticate_info(user, password, time, nonce)
    wrong = credentials.verify(info, password, time)
    assert (wrong is None) == bool(user.strip())
    assert credentials.verify(info, password + "x", time) is not None


@given(words)
def test_signatures_are_escaped_as_java_does(password: str) -> None:
    signature = credentials.sign("u", password, NOW, 1)
    assert signature == quote_plus(
        signature.replace("%2B", "+").replace("%2F", "/").replace("%3D", "=")
    )


def test_an_old_signature_is_refused() -> None:
    info = credentials.authenticate_info("admin", "secret", NOW, 1)
    assert credentials.verify(info, "secret", NOW + 20_000) is None
    assert credentials.verify(info, "secret", NOW - 20_001) is not None
    assert credentials.verify(info, "secret", NOW + 20_001) is not None
    assert credentials.verify(info, "secret", NOW + 50_000, valid_ms=60_000) is None


def test_a_blank_user_is_refused() -> None:
    info = credentials.authenticate_info(" ", "secret", NOW, 1)
    assert credentials.verify(info, "secret", NOW) == "User name or signature is blank."


def test_broker_tokens() -> None:
    token = credentials.broker_token("admin", "secret", NOW, 5)
    info = credentials.parse_broker_token(token)
    assert info is not None
    assert credentials.verify(info, "secret", NOW) is None


@given(st.text() | st.from_regex(r"\w* \d* \d* \w*", fullmatch=True))
def test_any_text_is_a_broker_token_or_none(text: str) -> None:
    info = credentials.parse_broker_token(text)
    if info is not None:
        assert f"{info.userName} " == text[: len(info.userName) + 1]
