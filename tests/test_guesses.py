"""Guessing passwords is slow, and nobody locks an account out."""

from __future__ import annotations

import pytest

from coherer._common.guesses import ADDRESS, KEPT_MAX, KNOWN, GuessLimit

DAY_S = 86_400


class Guesser:
    """Guesses wrong passwords as fast as it may."""

    def __init__(self, limit: GuessLimit) -> None:
        self.limit = limit
        self.now_s = 0.0

    def checked(self, account: str, address: str, tries: int = 1) -> int:
        """How many of these tries were checked, without a pause between them."""
        return sum(not self.limit.begin(account, address, self.now_s) for _ in range(tries))

    def sign_in(self, account: str, address: str) -> bool:
        """Give the right password; returns whether it was looked at."""
        if self.limit.begin(account, address, self.now_s):
            return False
        self.limit.succeeded(account, address, self.now_s)
        return True

    def attack(self, account: str = "ann", addresses: int = 100) -> int:
        return sum(self.checked(account, f"10.1.{n >> 8}.{n & 255}", 9) for n in range(addresses))


@pytest.fixture
def guesser() -> Guesser:
    return Guesser(GuessLimit())


def test_an_address_guesses_slowly(guesser: Guesser) -> None:
    assert guesser.checked("ann", "10.0.0.1", 1_000) == ADDRESS.at_once
    assert guesser.checked("bob", "10.0.0.1") == 0, "other accounts count together with it"
    assert guesser.limit.begin("ann", "10.0.0.1", guesser.now_s) == ADDRESS.pause_s
    guesser.now_s += ADDRESS.pause_s
    assert guesser.checked("ann", "10.0.0.1", 9) == 1
    guesser.now_s += DAY_S
    assert guesser.checked("bob", "10.0.0.1", 9) == ADDRESS.at_once


def test_an_own_account_does_not_reset_the_count(guesser: Guesser) -> None:
    checked = 0
    for _ in range(100):
        guesser.sign_in("own", "10.0.0.1")
        checked += guesser.checked("ann", "10.0.0.1", 4)
    assert checked == ADDRESS.at_once


def test_addresses_of_one_network_are_one_source(guesser: Guesser) -> None:
    found = sum(guesser.checked("ann", f"2001:db8::{n:x}") for n in range(100))
    assert found == ADDRESS.at_once
    assert guesser.checked("ann", "2001:db8:1::1") == 1


def test_many_addresses_guess_once_each(guesser: Guesser) -> None:
    first = guesser.attack()
    assert first < 120, "twenty together, and the first of every other"
    for _ in range(4):
        guesser.now_s += ADDRESS.pause_s
        assert guesser.attack() <= 1, "further tries take five minutes, as long as it goes on"


def test_an_attack_locks_nobody_out(guesser: Guesser) -> None:
    assert guesser.sign_in("ann", "10.0.0.1")
    for _ in range(20):
        guesser.attack()
        assert guesser.sign_in("ann", "10.0.0.1"), "where it has been used before"
        guesser.now_s += 1
    assert guesser.sign_in("ann", "10.0.0.2"), "the first try of a new address"
    assert guesser.sign_in("bob", "10.0.0.3"), "another account"


def test_a_known_address_is_limited_too(guesser: Guesser) -> None:
    assert guesser.sign_in("ann", "10.0.0.1")
    assert guesser.checked("ann", "10.0.0.1", 1_000) == KNOWN.at_once
    guesser.now_s += KNOWN.pause_s
    assert guesser.sign_in("ann", "10.0.0.1")


def test_right_passwords_are_never_slowed_down(guesser: Guesser) -> None:
    for _ in range(1_000):
        assert guesser.sign_in("ann", "10.0.0.1")


def test_memory_is_bounded(guesser: Guesser) -> None:
    for number in range(KEPT_MAX + 10):
        guesser.sign_in(
            f"account {number}", f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        )
    assert not guesser.limit.knows("account 0", "10.0.0.0")
    assert guesser.limit.knows("account 20", "10.0.0.20")
