"""Access control: accounts, permissions and trusted addresses.

See docs/protocol/rocketmq.md, section 10.

An account has permissions by topic and by group (under the names of the groups' retry topics), and
defaults for topics and groups that it does not list. An administrator without lists is a superuser.
Accounts that are not administrators may not change the broker.

One rule is stricter than in Java: the default permission for topics does not cover the topics in
which messages of other topics wait. They are for administrators, and for accounts that list them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from coherer._common.masking import MASK, masked
from coherer._record.system_topics import CHECK_MAX_TIME_TOPIC, RETRY_PREFIX
from coherer._rules.common.origins import WAITING_TOPICS
from coherer.errors import UsageError

DENY, ANY, PUB, SUB = 1, 2, 4, 8
"""Permission bits."""

KEY_CHARS_MIN: Final = 7
"""Names and secrets of accounts have more than six characters."""

_OTHERS_TOPICS: Final = WAITING_TOPICS | {CHECK_MAX_TIME_TOPIC}
"""Topics that hold messages of other topics."""

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
"""Tests whether an address matches."""


def permission(text: str | None) -> int:
    """Parse a permission; an unknown word means `DENY`.

    >>> permission("PUB|SUB"), permission("SUB"), permission("all"), permission(None)
    (12, 8, 1, 1)
    """
    return _PERMISSIONS.get((text or "").strip(), DENY)


def allows(needed: int, owned: int) -> bool:
    """Whether the owned permissions include a needed one.

    >>> allows(PUB, PUB | SUB), allows(PUB, SUB), allows(ANY, SUB), allows(PUB, PUB | DENY)
    (True, False, True, False)
    """
    if owned & DENY:
        return False
    if needed & ANY:
        return bool(owned & (PUB | SUB))
    return bool(needed & owned)


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """An account.

    Args:
        access_key: its name.
        secret_key: the secret that it signs with.
        white_remote_address: addresses from which it needs neither signature nor permission.
        admin: whether it is an administrator.
        default_topic_perm: its permission for other topics than those listed.
        default_group_perm: its permission for other groups than those listed.
        topic_perms: `topic=PERMISSION` each; None for no list.
        group_perms: `group=PERMISSION` each; None for no list.
        short: whether name and secret may be short: an account in the node's options.

    Raises:
        UsageError: name or secret is too short, or a permission is invalid.
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
        """Whether it is a superuser."""
        return self.admin and self.topic_perms is None and self.group_perms is None

    def permissions(self) -> dict[str, int] | None:
        """The listed permissions, by topic, and by retry topic for groups; None without lists."""
        if self.topic_perms is None and self.group_perms is None:
            return None
        topics = dict(map(_listed, self.topic_perms or ()))
        groups = dict(map(_listed, self.group_perms or ()))
        return topics | {RETRY_PREFIX + group: bits for group, bits in groups.items()}


def check_listed(entries: Sequence[str]) -> None:
    """Check permissions that an operator sets.

    Raises:
        UsageError: one is not `name=PERMISSION`.

    >>> check_listed(["a=PUB", "b=DENY"])
    """
    for entry in entries:
        _listed(entry)
        word = entry.partition("=")[2].strip()
        if word not in _PERMISSIONS:
            raise UsageError(f"{entry!r} has none of the permissions {', '.join(_PERMISSIONS)}.")


def _listed(entry: str) -> tuple[str, int]:
    name, found, word = entry.partition("=")
    if not found or not name.strip() or "=" in word:
        raise UsageError(f"{entry!r} is not a permission such as name=PUB.")
    return name.strip(), permission(word)


class Request(msgspec.Struct, frozen=True):
    """A request to check.

    Args:
        address: the sender's address, without the port.
        access_key: the account; None for none.
        resources: the permissions needed, by topic, and by retry topic for groups.
        needs_admin: whether it needs an administrator.
        signed_with: whether the request is signed with a secret.
    """

    address: str
    code: int
    access_key: str | None
    resources: Sequence[tuple[str, int]]
    needs_admin: bool
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
        trusted: addresses that may do everything.
        accounts: if several have the same name, the first one counts.

    Raises:
        UsageError: an address or a permission is invalid.

    >>> rules = AccessRules([], [Account(access_key="reader1", secret_key="1234567",
    ...                                  default_topic_perm="SUB")])
    >>> wish = Request("10.0.0.1", 310, "reader1", [("flights", PUB)], False, lambda secret: True)
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
        """Whether an address may do everything."""
        return any(trusted(address) for trusted in self._trusted)

    def unlimited(self) -> dict[str, str]:
        """The secrets of the superusers, by name."""
        return {
            name: known.account.secret_key
            for name, known in self._accounts.items()
            if known.account.unlimited
        }

    def fault(self, request: Request) -> str | None:
        """Why a request is refused, in Java's words; None if it is allowed (section 10.2)."""
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
        if request.needs_admin and not known.account.admin:
            return (
                f"Need admin permission for request code={request.code}, "
                f"but accessKey={request.access_key} is not"
            )
        return _lacking(known, request.resources)

    def lacking(
        self, address: str, access_key: str | None, resources: Sequence[tuple[str, int]]
    ) -> str | None:
        """Which permission a client lacks that has signed before, in Java's words; None if none.

        Args:
            access_key: its account; None for none.
            resources: as in a `Request`.
        """
        if self.trusts(address):
            return None
        known = None if access_key is None else self._accounts.get(access_key)
        if known is None:
            return f"No acl config for {access_key}"
        return None if known.trusted(address) else _lacking(known, resources)


def _lacking(known: _Known, resources: Sequence[tuple[str, int]]) -> str | None:
    """The missing permission, in Java's words; None if nothing is missing."""
    account = known.account
    if known.listed is None and account.admin:
        return None
    for name, needed in resources:
        is_group = name.startswith(RETRY_PREFIX)
        default = account.default_group_perm if is_group else account.default_topic_perm
        if name in _OTHERS_TOPICS:
            default = None
        owned = (known.listed or {}).get(name, permission(default))
        if not allows(needed, owned):
            kind = "group" if is_group else "topic"
            return f"No default permission for {kind}:{name.removeprefix(RETRY_PREFIX)}"
    return None


def addresses(text: str) -> Addresses:
    """Parse a pattern of addresses (section 10.4).

    Args:
        text: blank for none, `*` for all, one address, several separated by commas, a list in
            braces as the last part, or `*` or a range as one part.

    Raises:
        UsageError: the pattern is invalid.

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
            raise UsageError(f"{text!r} is not a valid address pattern.")
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
        raise UsageError(f"{', '.join(texts)} is not a list of addresses.") from error

    def found(address: str) -> bool:
        try:
            return ipaddress.ip_address(address) in known
        except ValueError:
            return False

    return found


def _range(text: str) -> Addresses:
    """Match up to the first part with a range or star; the parts behind it are ignored."""
    is_v6 = ":" in text
    parts = text.split(":" if is_v6 else ".")
    base, most, count = (16, 0xFFFF, _PARTS_V6) if is_v6 else (10, 255, _PARTS_V4)
    at = next((n for n, part in enumerate(parts) if part == "*" or "-" in part), 0)
    try:
        head = [int(part, base) for part in parts[:at]]
        first, _, last = parts[at].partition("-")
        low, high = (0, most) if first == "*" else (int(first, base), int(last, base))
    except ValueError as error:
        raise UsageError(f"{text!r} is not a valid address pattern.") from error
    if len(parts) > count or not at or not 0 <= low <= high <= most:
        raise UsageError(f"{text!r} is not a valid address pattern.")

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
