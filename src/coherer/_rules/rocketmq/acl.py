"""Who may do what: RocketMQ's accounts, their permissions, and trusted addresses (rocketmq 10).

An account has permissions by topic and by group (the latter stand under the names of their retry
topics), and others for what it does not list. An account that lists nothing and is an administrator
may do everything; one that is no administrator may not change the broker.

Stricter than Java's servers: accounts themselves are changed and shown by administrators only
(Java's broker shows all secrets to whoever has an account), and so is what a name server is told
(Java's name server checks nothing, though its clients sign what they send there, too).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from coherer._common.masking import MASK, masked
from coherer.errors import UsageError

DENY, ANY, PUB, SUB = 1, 2, 4, 8
"""Bits of a permission."""

RETRY_PREFIX: Final = "%RETRY%"
KEY_CHARS_MIN: Final = 7
"""Names and secrets of accounts are longer than six characters."""

_NAME_SERVER_CHANGES: Final = (100, 102, 103, 104, 205, 216, 318, 327)
ADMIN_CODES: Final = frozenset((17, 25, 200, 207, 215, 50, 51, 53, 54, *_NAME_SERVER_CHANGES))
"""What only administrators ask for; from 50 on not with Java."""

_PERMISSIONS: Final = {
    "PUB": PUB,
    "SUB": SUB,
    "PUB|SUB": PUB | SUB,
    "SUB|PUB": PUB | SUB,
    "DENY": DENY,
}
_ALWAYS: Final = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
_PARTS_V4, _PARTS_V6 = 4, 8

Addresses: TypeAlias = "Callable[[str], bool]"
"""Tells whether an address is one of them."""


def permission(text: str | None) -> int:
    """Returns the bits for a word; what is no word means no.

    >>> permission("PUB|SUB"), permission("SUB"), permission("all"), permission(None)
    (12, 8, 1, 1)
    """
    return _PERMISSIONS.get((text or "").strip(), DENY)


def allows(needed: int, owned: int) -> bool:
    """Tells whether what somebody may do is enough.

    >>> allows(PUB, PUB | SUB), allows(PUB, SUB), allows(ANY, SUB), allows(PUB, PUB | DENY)
    (True, False, True, False)
    """
    if owned & DENY:
        return False
    if needed & ANY:
        return bool(owned & (PUB | SUB))
    return bool(needed & owned)


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """One account.

    Args:
        access_key: its name.
        secret_key: what it signs with.
        white_remote_address: where it need not sign, nor have any permission.
        admin: whether it may change the broker.
        default_topic_perm: for topics that it does not list.
        default_group_perm: for groups that it does not list.
        topic_perms: `topic=PERMISSION` each; None for no list.
        group_perms: likewise.
        short: name and secret may be short: an account of the node's own options.

    Raises:
        UsageError: name or secret are too short, or a permission cannot be read.
    """

    access_key: str
    secret_key: str
    white_remote_address: str = ""
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: Sequence[str] | None = None
    group_perms: Sequence[str] | None = None
    short: bool = False

    def __post_init__(self) -> None:
        shortest = min(len(self.access_key), len(self.secret_key))
        if shortest < (1 if self.short else KEY_CHARS_MIN):
            raise UsageError(
                f"The accessKey={self.access_key} and secretKey={MASK} "
                "cannot be null and length should longer than 6"
            )

    def __repr__(self) -> str:
        return masked(self, "secret_key")

    @property
    def unlimited(self) -> bool:
        """Whether it may do everything."""
        return self.admin and self.topic_perms is None and self.group_perms is None

    def permissions(self) -> dict[str, int] | None:
        """The listed permissions, by topic, and by retry topic for groups; None without lists."""
        if self.topic_perms is None and self.group_perms is None:
            return None
        topics = dict(map(_listed, self.topic_perms or ()))
        groups = dict(map(_listed, self.group_perms or ()))
        return topics | {RETRY_PREFIX + group: bits for group, bits in groups.items()}


def check_listed(entries: Sequence[str]) -> None:
    """Checks what an operator gives as permissions.

    Raises:
        UsageError: one is not `name=PERMISSION`.

    >>> check_listed(["a=PUB", "b=DENY"])
    """
    for entry in entries:
        _listed(entry)
        word = entry.partition("=")[2].strip()
        if word not in _PERMISSIONS:
            raise UsageError(f"{entry!r} gives no permission: {', '.join(_PERMISSIONS)} are.")


def _listed(entry: str) -> tuple[str, int]:
    name, found, word = entry.partition("=")
    if not found or not name.strip() or "=" in word:
        raise UsageError(f"{entry!r} is no permission: name=PUB is one.")
    return name.strip(), permission(word)


class Request(msgspec.Struct, frozen=True):
    """What somebody wants.

    Args:
        address: where it comes from, without the port.
        code: the request's.
        access_key: the account; None for none.
        resources: the bits needed, by topic, and by retry topic for groups.
        signed_with: tells whether it is signed with a secret.
    """

    address: str
    code: int
    access_key: str | None
    resources: Mapping[str, int]
    signed_with: Callable[[str], bool]


class _Known(msgspec.Struct, frozen=True):
    account: Account
    trusted: Addresses
    listed: dict[str, int] | None

    def __repr__(self) -> str:
        return f"_Known({self.account!r})"


class AccessRules:
    """The accounts and trusted addresses of a broker.

    Args:
        trusted: addresses from where everything is allowed.
        accounts: of several with one name the first counts.

    Raises:
        UsageError: an address or a permission cannot be read.

    >>> rules = AccessRules([], [Account(access_key="reader1", secret_key="1234567",
    ...                                  default_topic_perm="SUB")])
    >>> wish = Request("10.0.0.1", 310, "reader1", {"flights": PUB}, lambda secret: True)
    >>> rules.fault(wish)
    'No default permission for topic:flights'
    """

    def __init__(self, trusted: Sequence[str], accounts: Sequence[Account]) -> None:
        self._trusted = [addresses(text) for text in trusted]
        self._accounts: dict[str, _Known] = {}
        for account in accounts:
            known = _Known(account, addresses(account.white_remote_address), account.permissions())
            self._accounts.setdefault(account.access_key, known)

    def trusts(self, address: str) -> bool:
        """Whether everything is allowed from an address."""
        return any(trusted(address) for trusted in self._trusted)

    def unlimited(self) -> dict[str, str]:
        """The secrets of the accounts that may do everything, by name."""
        return {
            name: known.account.secret_key
            for name, known in self._accounts.items()
            if known.account.unlimited
        }

    def fault(self, request: Request) -> str | None:
        """Says why a request is refused, in Java's words; None when it is not (10.2)."""
        if self.trusts(request.address):
            return None
        if request.access_key is None:
            return "No accessKey is configured"
        known = self._accounts.get(request.access_key)
        if known is None:
            return f"No acl config for {request.access_key}"
        if known.trusted(request.address):
            return None
        if not request.signed_with(known.account.secret_key):
            return f"Check signature failed for accessKey={request.access_key}"
        return _lacking(known, request)


def _lacking(known: _Known, request: Request) -> str | None:
    """Says which permission is missing."""
    account = known.account
    if request.code in ADMIN_CODES and not account.admin:
        return (
            f"Need admin permission for request code={request.code}, "
            f"but accessKey={account.access_key} is not"
        )
    if known.listed is None and account.admin:
        return None
    for name, needed in request.resources.items():
        is_group = name.startswith(RETRY_PREFIX)
        default = account.default_group_perm if is_group else account.default_topic_perm
        owned = (known.listed or {}).get(name, permission(default))
        if not allows(needed, owned):
            kind = "group" if is_group else "topic"
            return f"No default permission for {kind}:{name.removeprefix(RETRY_PREFIX)}"
    return None


def addresses(text: str) -> Addresses:
    """Returns the test for a text that describes addresses (10.4).

    Args:
        text: blank for none, `*` for all, one address, several with commas between, a list in
            braces as the last part, or `*` or a range as one part.

    Raises:
        UsageError: it describes none.

    >>> [addresses("10.0.0.{1,3}")(f"10.0.0.{n}") for n in (1, 2, 3)]
    [True, False, True]
    >>> addresses("10.0.1-3.*")("10.0.2.77"), addresses("fe80:*")("fe80::1"), addresses("")("")
    (True, True, False)
    """
    text = text.strip()
    if not text:
        return lambda _: False
    if text in _ALWAYS:
        return lambda _: True
    if text.endswith("}"):
        head, found, inside = text[:-1].rpartition("{")
        if not found or "{" in head or head[-1:] not in (".", ":"):
            raise UsageError(f"{text!r} describes no addresses.")
        return _one_of([head + last.strip() for last in inside.split(",")])
    if "," in text:
        return _one_of([one.strip() for one in text.split(",")])
    if "*" in text or "-" in text:
        return _range(text)
    return _one_of([text])


def _one_of(texts: Sequence[str]) -> Addresses:
    try:
        known = frozenset(ipaddress.ip_address(text) for text in texts)
    except ValueError as error:
        raise UsageError(f"{', '.join(texts)} are no addresses.") from error

    def found(address: str) -> bool:
        try:
            return ipaddress.ip_address(address) in known
        except ValueError:
            return False

    return found


def _range(text: str) -> Addresses:
    """The first part with a range or star decides; what stands behind it does not matter."""
    is_v6 = ":" in text
    parts = text.split(":" if is_v6 else ".")
    base, most, count = (16, 0xFFFF, _PARTS_V6) if is_v6 else (10, 255, _PARTS_V4)
    at = next((n for n, part in enumerate(parts) if part == "*" or "-" in part), 0)
    try:
        head = [int(part, base) for part in parts[:at]]
        first, _, last = parts[at].partition("-")
        low, high = (0, most) if first == "*" else (int(first, base), int(last, base))
    except ValueError as error:
        raise UsageError(f"{text!r} describes no addresses.") from error
    if len(parts) > count or not at or not 0 <= low <= high <= most:
        raise UsageError(f"{text!r} describes no addresses.")

    def found(address: str) -> bool:
        numbers = _numbers(address, is_v6)
        return numbers is not None and numbers[:at] == head and low <= numbers[at] <= high

    return found


def _numbers(address: str, is_v6: bool) -> list[int] | None:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return None
    if (parsed.version == _V6) != is_v6:
        return None
    if is_v6:
        return [int(part, 16) for part in parsed.exploded.split(":")]
    return list(parsed.packed)


_V6: Final = 6
