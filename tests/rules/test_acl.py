from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._rules.rocketmq.acl import (
    PUB,
    SUB,
    AccessRules,
    Account,
    Request,
    addresses,
    check_listed,
)
from coherer.errors import UsageError

KEY, SECRET = "account1", "secret12"
ADMIN = (17, 25)


def wish(
    code: int = 310,
    key: str | None = KEY,
    address: str = "10.0.0.9",
    signed: bool = True,
    **resources: int,
) -> Request:
    named = {name.replace("RETRY_", "%RETRY%"): bits for name, bits in resources.items()}
    return Request(
        address,
        code,
        key,
        tuple(named.items()),
        code in ADMIN,
        lambda secret: signed and secret == SECRET,
    )


def rules(**account: Any) -> AccessRules:
    return AccessRules(
        ["192.168.0.*"],
        [Account(access_key=KEY, secret_key=SECRET, **account)],
    )


def test_the_order_of_checks() -> None:
    """The checks of docs/protocol/rocketmq.md, section 10.2, in order."""
    found = rules(white_remote_address="10.1.1.1")
    assert found.fault(wish(address="192.168.0.77", key=None)) is None
    assert found.fault(wish(key=None)) == "No accessKey is configured"
    assert found.fault(wish(key="stranger")) == "No acl config for stranger"
    assert found.fault(wish(17, address="10.1.1.1", signed=False, x=PUB)) is None
    fault = f"Check signature failed for accessKey={KEY}"
    assert found.fault(wish(17, signed=False)) == fault
    fault = f"Need admin permission for request code=17, but accessKey={KEY} is not"
    assert found.fault(wish(17)) == fault
    assert found.fault(wish(14)) is None
    assert found.fault(wish(x=PUB)) == "No default permission for topic:x"


@pytest.mark.parametrize("code", ADMIN)
def test_requests_that_need_an_administrator(code: int) -> None:
    assert "Need admin permission" in (rules(default_topic_perm="PUB").fault(wish(code)) or "")
    assert rules(admin=True).fault(wish(code)) is None


def test_defaults_and_lists() -> None:
    found = rules(
        default_topic_perm="SUB",
        default_group_perm="DENY",
        topic_perms=["a=PUB|SUB", "b=DENY", "c=nonsense"],
        group_perms=["g=SUB"],
    )
    allowed = [{"a": PUB}, {"a": SUB}, {"z": SUB}, {"RETRY_g": SUB}, {"a": PUB, "RETRY_g": SUB}]
    for resources in allowed:
        assert found.fault(wish(**resources)) is None
    refused = {
        "topic:b": {"b": SUB},
        "topic:c": {"a": SUB, "c": SUB},
        "topic:z": {"z": PUB},
        "group:h": {"RETRY_h": SUB},
        "group:g": {"RETRY_g": PUB},
    }
    for name, resources in refused.items():
        assert found.fault(wish(**resources)) == f"No default permission for {name}"


def test_the_default_does_not_cover_topics_that_hold_messages_of_others() -> None:
    half = "RMQ_SYS_TRANS_HALF_TOPIC"
    for topic in (half, "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "TRANS_CHECK_MAX_TIME_TOPIC"):
        assert rules(default_topic_perm="SUB").fault(wish(11, **{topic: SUB})) is not None
    assert rules(topic_perms=[f"{half}=SUB"]).fault(wish(11, **{half: SUB})) is None
    assert rules(admin=True).fault(wish(11, **{half: SUB})) is None


def test_administrators_with_a_list_are_bound_by_it() -> None:
    assert rules(admin=True).fault(wish(a=PUB)) is None
    found = rules(admin=True, topic_perms=["a=SUB"])
    assert found.fault(wish(a=PUB)) == "No default permission for topic:a"


def test_of_two_accounts_with_one_name_the_first_counts() -> None:
    two = [
        Account(access_key=KEY, secret_key=SECRET, default_topic_perm="PUB"),
        Account(access_key=KEY, secret_key="another1"),
    ]
    assert AccessRules([], two).fault(wish(a=PUB)) is None


@pytest.mark.parametrize(("key", "secret"), [("short6", SECRET), (KEY, "123456"), ("", "")])
def test_names_and_secrets_that_are_too_short(key: str, secret: str) -> None:
    with pytest.raises(UsageError, match="longer than 6") as error:
        Account(access_key=key, secret_key=secret)
    assert not secret or secret not in str(error.value)


@pytest.mark.parametrize("entry", ["a", "=PUB", "a=PUB=SUB", "", "a=ALL", "a="])
def test_permissions_that_an_operator_may_not_give(entry: str) -> None:
    with pytest.raises(UsageError):
        check_listed([entry])


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("", [], ["10.0.0.1"]),
        ("  ", [], ["10.0.0.1"]),
        ("*", ["10.0.0.1", "::1", "nonsense"], []),
        ("*.*.*.*", ["10.0.0.1"], []),
        ("*:*:*:*:*:*:*:*", ["::1"], []),
        ("10.0.0.1", ["10.0.0.1"], ["10.0.0.2", "::1", "x"]),
        ("10.0.0.1, 10.0.0.2", ["10.0.0.1", "10.0.0.2"], ["10.0.0.3"]),
        ("10.0.0.{1,2,3}", ["10.0.0.2"], ["10.0.0.4", "10.0.0.12"]),
        ("10.0.*", ["10.0.0.1", "10.0.255.255"], ["10.1.0.0", "100.0.0.1"]),
        ("10.0.0.*", ["10.0.0.0"], ["10.0.1.0"]),
        ("10.0.0.10-20", ["10.0.0.10", "10.0.0.20"], ["10.0.0.9", "10.0.0.21"]),
        ("10.0.1-3.*", ["10.0.1.9", "10.0.3.0"], ["10.0.4.0", "10.0.0.0"]),
        ("10.0.1-3.7", ["10.0.1.9"], ["10.0.4.7"]),
        ("2001:db8::1", ["2001:db8::1", "2001:DB8:0:0:0:0:0:1"], ["2001:db8::2", "1.1.1.1"]),
        ("2001:db8:0:0:0:0:0:{1,a}", ["2001:db8::a"], ["2001:db8::2"]),
        ("2001:db8:*", ["2001:db8:1::7"], ["2001:db9::", "32.1.13.184"]),
        ("2001:db8:0:0:0:0:0:10-1f", ["2001:db8::10", "2001:db8::1f"], ["2001:db8::9"]),
    ],
)
def test_descriptions_of_addresses(text: str, inside: list[str], outside: list[str]) -> None:
    found = addresses(text)
    assert [found(address) for address in inside] == [True] * len(inside)
    assert [found(address) for address in outside] == [False] * len(outside)


@pytest.mark.parametrize(
    "text",
    ["x", "10.0.0", "10.0.0.256", "10.0.0.{1,x}", "{1}", "10.{1,2}", "10.0.0.20-10", "10.0.0.-5",
     "10.0.0.0-256", "*.1.2.3", "1.2.3.4.*", "1,", "a-b", "10.0.0.5-", "fe80::*", "10.0{1}"],
)  # fmt: skip
def test_invalid_address_patterns(text: str) -> None:
    with pytest.raises(UsageError):
        addresses(text)


@given(st.text(alphabet="0123456789.:*-{}, af", max_size=20), st.ip_addresses().map(str))
def test_a_description_or_our_own_error(text: str, address: str) -> None:
    try:
        found = addresses(text)
    except UsageError:
        return
    assert found(address) in (True, False)


@given(st.ip_addresses(v=4))
def test_every_address_is_in_its_own_description(address: ipaddress.IPv4Address) -> None:
    head, _, last = str(address).rpartition(".")
    for text in (str(address), f"{head}.*", f"{head}.{{{last},0}}", f"{head}.{last}-255"):
        assert addresses(text)(str(address))
