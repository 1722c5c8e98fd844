"""`coherer accounts`: files that a node and its clients accept, and what is never shown."""

from __future__ import annotations

import json
import os
import secrets
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from coherer.blocking import connect
from coherer.cli.main import app
from coherer.errors import CohererError
from coherer.message import Message
from coherer.testing import embedded_node
from tests.private import write_private

SECRET = "a-long-secret"


def accounts(directory: Path, *words: str, given: str = SECRET) -> Result:
    words = ("accounts", *words, "--directory", str(directory))
    if words[1] in {"add", "password"} and "--generate" not in words:
        words = (*words, "--password-file", "-")
    result = CliRunner().invoke(app, list(words), input=given + "\n", catch_exceptions=False)
    assert SECRET not in result.output
    return result


def listed(directory: Path) -> dict[str, dict[str, Any]]:
    found = json.loads(accounts(directory, "list", "--json").stdout)
    return {one["name"]: one for one in found}


def test_an_account_is_made_changed_and_removed(tmp_path: Path) -> None:
    assert accounts(tmp_path, "add", "writer-1", "--topic", "flights=PUB").exit_code == 0
    file = tmp_path / "conf" / "plain_acl.yml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (entry,) = yaml.safe_load(file.read_text())["accounts"]
    assert entry == {
        "accessKey": "writer-1", "secretKey": SECRET, "admin": False, "topicPerms": ["flights=PUB"]
    }  # fmt: skip
    changed = accounts(tmp_path, "grant", "writer-1", "--topic", "flights=PUB|SUB",
                       "--group", "g=SUB", "--default-topic", "DENY")  # fmt: skip
    assert changed.exit_code == 0
    assert listed(tmp_path)["writer-1"] == {
        "name": "writer-1", "kind": "client", "stored": "secret", "admin": False,
        "topics": ["flights=PUB|SUB"], "groups": ["g=SUB"], "default_topic": "DENY",
        "default_group": None, "address": "",
    }  # fmt: skip
    assert "flights=PUB|SUB" in accounts(tmp_path, "list").stdout
    assert accounts(tmp_path, "remove", "writer-1", "--yes").exit_code == 0
    assert listed(tmp_path) == {}


def test_http_passwords_are_hashed(tmp_path: Path) -> None:
    assert accounts(tmp_path, "add", "looker", "--http-only", "--read-only").exit_code == 0
    file = tmp_path / "conf" / "administration.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert SECRET not in file.read_text()
    assert "scrypt$" in file.read_text()
    assert listed(tmp_path)["looker"]["admin"] is False
    assert accounts(tmp_path, "grant", "looker", "--changes").exit_code == 0
    assert (
        listed(tmp_path)["looker"] | {"kind": "http", "stored": "hash", "admin": True}
        == listed(tmp_path)["looker"]
    )
    assert accounts(tmp_path, "remove", "looker", "--yes").exit_code == 0


def test_a_generated_password_is_shown_once(tmp_path: Path) -> None:
    made = accounts(tmp_path, "add", "machine", "--admin", "--generate", "--json")
    password = json.loads(made.stdout)["password"]
    assert len(password) >= 24
    assert password not in accounts(tmp_path, "list", "--json").output
    again = accounts(tmp_path, "password", "machine", "--generate").stdout.strip()
    assert again != password
    assert again in (tmp_path / "conf" / "plain_acl.yml").read_text()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["add", "short"], "it needs 7 characters or more"),
        (["add", "writer-1", "--topic", "flights=WRITE"], "has none of the permissions"),
        (["add", "writer-1", "--default-topic", "ALL"], "is not a permission"),
        (["add", "looker", "--http-only", "--admin"], "the only permissions are"),
        (["add", "writer-1", "--read-only"], "are for accounts with --http-only"),
        (["grant", "nobody", "--admin"], "have no account 'nobody'"),
        (["remove", "nobody", "--yes"], "have no account 'nobody'"),
        (["password", "nobody"], "have no account 'nobody'"),
    ],
)
def test_what_is_refused(tmp_path: Path, words: list[str], text: str) -> None:
    result = accounts(tmp_path, *words)
    assert result.exit_code == 2
    assert text in " ".join(result.stderr.split())


def test_a_client_is_not_made_read_only(tmp_path: Path) -> None:
    assert accounts(tmp_path, "add", "writer-1", "--topic", "flights=PUB").exit_code == 0
    before = listed(tmp_path)
    refused = accounts(tmp_path, "grant", "writer-1", "--topic", "gates=SUB", "--read-only")
    assert refused.exit_code == 2
    assert "are for accounts with --http-only" in " ".join(refused.stderr.split())
    assert listed(tmp_path) == before


@pytest.mark.parametrize("kind", [["--admin"], ["--http-only"]])
def test_two_commands_that_create_an_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: list[str]
) -> None:
    """Only one password is shown, that of the account."""
    first = [True]
    generate = secrets.token_urlsafe

    def slow(size: int) -> str:
        if first:
            first.clear()
            assert accounts(tmp_path, "add", "machine", *kind, "--generate").exit_code == 0
        return generate(size)

    monkeypatch.setattr(secrets, "token_urlsafe", slow)
    refused = accounts(tmp_path, "add", "machine", *kind, "--generate")
    assert refused.exit_code == 2
    assert "exists" in refused.stderr
    assert refused.stdout == ""


def test_names_are_unique(tmp_path: Path) -> None:
    assert accounts(tmp_path, "add", "operator", "--http-only").exit_code == 0
    assert "exists" in accounts(tmp_path, "add", "operator").stderr
    assert accounts(tmp_path, "add", "writer-1").exit_code == 0
    assert "exists" in accounts(tmp_path, "add", "writer-1", "--http-only").stderr


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    accounts(tmp_path, "add", "writer-1")
    accounts(tmp_path, "add", "looker", "--http-only")
    for name in ("plain_acl.yml", "administration.json"):
        path = tmp_path / "conf" / name
        path.chmod(0o640)
        result = accounts(tmp_path, "list")
        assert result.exit_code == 2
        assert f"chmod 600 {path}" in "".join(result.stderr.split("\n"))
        path.chmod(0o600)


def sends(url: str, user: str, password: str) -> bool:
    try:
        with connect(url, user=user, password=password) as client, client.producer() as producer:
            producer.send(Message("work", b"x"))
    except CohererError:
        return False
    return True


def test_a_running_node_takes_accounts_over_both_protocols_and_http(tmp_path: Path) -> None:
    write_private_directory = tmp_path / "conf"
    write_private_directory.mkdir()
    write_private(write_private_directory / "plain_acl.yml", "globalWhiteRemoteAddresses: []\n")
    with embedded_node(tmp_path, rocketmq_access=True) as node:

        def reload() -> None:
            """As on SIGHUP."""
            node.call(lambda: node.node.change(node.node.options))

        urls = (node.url, node.rocketmq_url)
        assert not any(sends(url, "operator", SECRET) for url in urls)
        accounts(tmp_path, "add", "operator", "--admin")
        accounts(tmp_path, "add", "looker", "--http-only", "--read-only")
        accounts(tmp_path, "add", "changer", "--http-only")
        reload()
        assert all(sends(url, "operator", SECRET) for url in urls)
        assert not any(sends(url, "changer", SECRET) for url in urls)
        assert http(node.admin_url, "looker", SECRET) == (True, False)
        assert http(node.admin_url, "changer", SECRET) == (True, True)
        assert http(node.admin_url, "operator", SECRET) == (True, True)
        assert http(node.admin_url, "looker", "wrong-password") == (False, False)
        accounts(tmp_path, "remove", "operator", "--yes")
        accounts(tmp_path, "remove", "looker", "--yes")
        (tmp_path / "conf" / "administration.json").chmod(0o644)  # an unchanged file stays in use
        reload()
        assert not any(sends(url, "operator", SECRET) for url in urls)


def http(url: str, user: str, password: str) -> tuple[bool, bool]:
    """Whether an account may look, and whether it may change something, over HTTP."""
    import base64
    from urllib.request import Request, urlopen

    proof = base64.b64encode(f"{user}:{password}".encode()).decode()

    def may(method: str) -> bool:
        request = Request(
            f"{url}/webapi.htm?method={method}", headers={"Authorization": f"Basic {proof}"}
        )
        with urlopen(request, timeout=30) as answer:
            return b"illegal access" not in answer.read()

    return may("admin_query_topic_info"), may("admin_add_new_topic_record")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives files away")
def test_files_made_by_root_belong_to_the_owner_of_the_node(tmp_path: Path) -> None:
    os.chown(tmp_path, 1234, 1234)
    accounts(tmp_path, "add", "writer-1")
    accounts(tmp_path, "add", "looker", "--http-only")
    made = [tmp_path / "conf", *(tmp_path / "conf").iterdir()]
    assert len(made) == 4
    assert {path.stat().st_uid for path in made} == {1234}


@pytest.mark.parametrize("words", [[], ["--group", "readers"]])
def test_consuming_without_permission_fails(tmp_path: Path, words: list[str]) -> None:
    accounts(tmp_path, "add", "operator", "--admin")
    accounts(tmp_path, "add", "writer-1", "--topic", "work=PUB", "--group", "readers=SUB")
    with embedded_node(tmp_path, rocketmq_access=True) as node:
        with connect(node.rocketmq_url, user="operator", password=SECRET) as client:
            client.admin().topics.create("work", 1, wait_ms=5_000)
        command = ["consume", "work", *words, "--url", node.rocketmq_url, "--timeout", "1"]
        account = {"COHERER_USER": "writer-1", "COHERER_PASSWORD": SECRET}
        done = CliRunner().invoke(app, command, env=account)
        assert (done.exit_code, done.stdout) == (1, "")
        assert "permission" in done.stderr
