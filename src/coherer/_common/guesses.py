"""Slows down attempts to guess passwords, without locking anybody out.

The console and the HTTP administration of a node use it in the same way: `begin` before a password
is checked, `succeeded` after it was right.

Invariants:

* A try is counted when it begins, and only a right password takes it back. So tries that run at the
  same time count as well as those that follow each other, and someone who has an account of their
  own cannot reset the count by signing in between two guesses.
* Nobody can lock an account out from another address. An address that has signed in to an account
  before has tries of its own, which others cannot use up, and the first try of a new address is
  always checked.

Each source has a number of tries at once, and gets further ones at a fixed rate (a token bucket). A
source is an IPv4 address, or the network (/64) of an IPv6 address, because one machine can use all
addresses of its network. `_ACCOUNT` counts the tries that reach one account from addresses that are
new to it. While it is used up, somebody guesses from many addresses: then each of them gets one try
in five minutes.
"""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple

KEPT_MAX: Final = 10_000
"""The number of addresses and accounts that are counted; the oldest are forgotten."""
_NAME_CHARS: Final = 100


class Rate(NamedTuple):
    """How often something may be tried.

    Args:
        at_once: the number of tries without a pause.
        pause_s: how long it takes until one more is allowed.
    """

    at_once: int
    pause_s: float


ADDRESS: Final = Rate(5, 30)
"""An address, for all accounts together."""
KNOWN: Final = Rate(50, 1)
"""An address that has signed in to the account before: people who share a proxy have one address,
and must not lock each other out."""
_ACCOUNT: Final = Rate(20, 30)
_ATTACKED: Final = Rate(1, 300)
"""A new address, while the account's own tries are used up."""


class _Buckets:
    """The tries left of each key."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._left: dict[object, tuple[float, float]] = {}  # tries left, and when

    def wait_s(self, key: object, now_s: float) -> float:
        """How long until a try is allowed; 0 if one is."""
        return max(0.0, (1 - self._now(key, now_s)) * self._rate.pause_s)

    def take(self, key: object, now_s: float) -> None:
        """Use up a try, if there is one."""
        self._set(key, max(0.0, self._now(key, now_s) - 1), now_s)

    def give_back(self, key: object, now_s: float) -> None:
        """Undo `take`."""
        self._set(key, min(self._rate.at_once, self._now(key, now_s) + 1), now_s)

    def _now(self, key: object, now_s: float) -> float:
        left, then_s = self._left.get(key, (float(self._rate.at_once), now_s))
        return min(self._rate.at_once, left + max(0.0, now_s - then_s) / self._rate.pause_s)

    def _set(self, key: object, left: float, now_s: float) -> None:
        self._left.pop(key, None)
        self._left[key] = left, now_s
        while len(self._left) > KEPT_MAX:
            del self._left[next(iter(self._left))]


class GuessLimit:
    """Decides whether a password may be checked now.

    >>> limit = GuessLimit()
    >>> [limit.begin("ann", "10.0.0.1", now_s=0) for _ in range(6)]
    [0.0, 0.0, 0.0, 0.0, 0.0, 30.0]
    >>> limit.begin("ann", "10.0.0.2", now_s=0)
    0.0
    """

    def __init__(self) -> None:
        self._addresses = _Buckets(ADDRESS)
        self._accounts = _Buckets(_ACCOUNT)
        self._attackers = _Buckets(_ATTACKED)
        self._friends = _Buckets(KNOWN)
        self._known: dict[tuple[str, str], None] = {}

    def begin(self, account: str, address: str, now_s: float) -> float:
        """Begin a try.

        Args:
            account: the name that was given, whether it exists or not.
            address: where the try comes from.
            now_s: the time of a monotonic clock.

        Returns:
            0 if the password may be checked; otherwise how long to wait, in s, and the password
            must not be looked at.
        """
        key = _key(account, address)
        if key in self._known:
            wait_s = self._friends.wait_s(key, now_s)
            if not wait_s:
                self._friends.take(key, now_s)
            return wait_s
        name, source = key
        wait_s = self._addresses.wait_s(source, now_s)
        if self._accounts.wait_s(name, now_s):
            wait_s = max(wait_s, self._attackers.wait_s(key, now_s))
        if not wait_s:
            self._addresses.take(source, now_s)
            self._accounts.take(name, now_s)
            self._attackers.take(key, now_s)
        return wait_s

    def succeeded(self, account: str, address: str, now_s: float) -> None:
        """The password of the try that was begun last was right."""
        key = _key(account, address)
        if key in self._known:
            self._friends.give_back(key, now_s)
            return
        name, source = key
        self._addresses.give_back(source, now_s)
        self._accounts.give_back(name, now_s)
        self._known[key] = None
        while len(self._known) > KEPT_MAX:
            del self._known[next(iter(self._known))]

    def knows(self, account: str, address: str) -> bool:
        """Whether an address has signed in to an account before."""
        return _key(account, address) in self._known


def _key(account: str, address: str) -> tuple[str, str]:
    return account[:_NAME_CHARS], source_of(address)


def source_of(address: str) -> str:
    """Return the network that counts as one source.

    >>> source_of("10.0.0.1"), source_of("2001:db8::7"), source_of("::ffff:10.0.0.1")
    ('10.0.0.1', '2001:db8::/64', '10.0.0.1')
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
