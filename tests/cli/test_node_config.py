"""The layers of the configuration of `coherer serve`, and `coherer config`."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from coherer._net import TlsOptions
from coherer._server.options.node import NodeOptions
from coherer.cli import main
from coherer.cli.serve.node_config import (
    FIELDS,
    example,
    from_command_line,
    from_environment,
    from_file,
    log_options,
    merged,
    node_options,
)
from coherer.errors import UsageError


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(text, encoding="utf-8")
    return path


def run(*words: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    done = CliRunner().invoke(main.app, list(words), env=env, catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr


def test_a_file_sets_every_kind_of_option(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        directory = "data"
        roles = "master"
        protocols = ["tubemq", "rocketmq"]
        admin_port = false
        retention_hours = 0
        users = { me = "a=b" }
        admin_names = ["x"]
        auto_create_topics = false
        [tls]
        certificate = "c.pem"
        [log]
        level = "info"
        levels = { "coherer._store" = "debug" }
        """,
    )
    values = from_file(path)
    assert node_options(values) == NodeOptions(
        directory=Path("data"),
        roles=frozenset({"master"}),
        admin_port=None,
        retention_hours=None,
        users={"me": "a=b"},
        admin_names=frozenset({"x"}),
        auto_create_topics=False,
        tls=TlsOptions(certificate=Path("c.pem")),
    )
    assert log_options(values).level == "info"
    assert log_options(values).levels == {"coherer._store": "debug"}


def test_the_last_layer_wins_and_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "broker_port = 1\nmaster_port = 2\nadmin_port = 3\n")
    environment = {"COHERER_BROKER_PORT": "11", "COHERER_MASTER_PORT": "12"}
    values = merged(
        from_file(path), from_environment(environment), from_command_line({"broker_port": 21})
    )
    options = node_options(values)
    assert (options.broker_port, options.master_port, options.admin_port) == (21, 12, 3)
    assert [values[name].source for name in ("broker_port", "master_port", "admin_port")] == [
        "--broker-port",
        "COHERER_MASTER_PORT in the environment",
        f"admin_port in {path}",
    ]


def test_every_option_has_a_variable() -> None:
    variables = [one.variable for one in FIELDS]
    assert len(set(variables)) == len(variables)
    values = from_environment(
        {
            "COHERER_USERS": "me=a you=b",
            "COHERER_TLS_KEY_PASSWORD": "secret",
            "COHERER_LOG_FORMAT": "json",
            "COHERER_RETENTION_HOURS": "0",
            "COHERER_HOLD_MS": "none",
        }
    )
    assert values["users"].value == {"me": "a", "you": "b"}
    assert values["tls.key_password"].value == "secret"
    assert log_options(values).format == "json"
    assert (values["retention_hours"].value, values["hold_ms"].value) == (None, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("broker_prt = 1", "Did you mean broker_port?"),
        ("console = true", "Did you mean console.enabled?"),
        ('log = "info"', "Did you mean log.level?"),
        ('user = "a=b"', "Did you mean users?"),
        ("[tsl]\nkey = 1", "'tsl.key' in"),
        ('broker_port = "x"', "broker_port in"),
        ('flush = "never"', "Choose from async, sync."),
        ("broker_port = ", "is not TOML"),
        ('log.levels = { x = "loud" }', "'loud' is not a level (x)"),
        ("retention_hours = -1", "retention_hours in"),
        ('users = ["nobody"]', "NAME=PASSWORD"),
        ("users = 3", "users in"),
        ('users = ["a=b", 3]', "users in"),
        ("retention_hours = [3]", "retention_hours in"),
        ("zzzz = 3", "`coherer config example` lists all options."),
        ('tls.certificate = "none.pem"', "tls.certificate in"),
        ('directory = ""', "'' is not a path."),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    path = written(tmp_path, text)
    code, _, err = run("config", "check", str(path))
    assert code == 2
    assert expected in err
    assert str(path) in err


def test_a_key_without_a_certificate_is_refused(tmp_path: Path) -> None:
    code, _, err = run("config", "check", str(written(tmp_path, 'tls.key = "none.pem"')))
    assert code == 2
    assert "Set --tls-certificate." in err


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Cannot read .*missing\.toml"):
        from_file(tmp_path / "missing.toml")


def test_check_counts_the_options_and_warns(tmp_path: Path) -> None:
    path = written(tmp_path, 'host = "0.0.0.0"\nadvertised_host = "node1"\n')
    code, out, err = run("config", "check", str(path))
    assert (code, out) == (0, f"{path} is valid; it sets 2 options.\n")
    assert err.startswith("warning: 0.0.0.0 is open to the network without accounts")
    code, out, err = run("config", "check", str(path), "--json")
    found = msgspec.json.decode(out)
    assert (code, err, found["file"], found["options"]) == (0, "", str(path), 2)
    assert found["warnings"][0].startswith("0.0.0.0 is open to the network without accounts")


def test_show_names_sources_and_hides_secrets(tmp_path: Path) -> None:
    path = written(tmp_path, 'users = { me = "secret" }\n')
    code, out, _ = run(
        "config", "show", "--config", str(path), "--json", env={"COHERER_ADMIN_TOKEN": "hidden"}
    )
    assert code == 0
    rows = {row["name"]: row for row in msgspec.json.decode(out)}
    assert set(rows) == {one.name for one in FIELDS}
    assert rows["users"] == {
        "name": "users",
        "value": '{ "me" = "***" }',
        "source": f"users in {path}",
    }
    assert rows["admin_token"]["source"] == "COHERER_ADMIN_TOKEN in the environment"
    assert "secret" not in out
    assert "hidden" not in out
    assert rows["broker_port"] == {"name": "broker_port", "value": "8123", "source": "default"}


def test_show_refuses_a_level_that_does_not_exist() -> None:
    code, _, err = run("config", "show", env={"COHERER_LOG_LEVELS": "coherer._store=loud"})
    assert code == 2
    assert "COHERER_LOG_LEVELS in the environment: 'loud' is not a level (coherer._store)" in err


def test_show_prints_a_table() -> None:
    code, out, _ = run("config", "show")
    assert code == 0
    assert "broker_port" in out


def test_the_example_lists_every_option_and_its_default(tmp_path: Path) -> None:
    code, text, _ = run("config", "example")
    assert (code, text) == (0, example())
    sections: dict[str, object] = {"tls": {}, "log": {}, "console": {}}
    assert tomllib.loads(text) == sections, "all options are commented out"
    sample = "".join(
        line.removeprefix("# ") + "\n"
        for line in text.splitlines()
        if line.startswith("[") or " = " in line
    )
    for one in FIELDS:
        if one.plain_type is Path and one.default is None:  # an empty path is refused
            name = one.name.rpartition(".")[2]
            sample = sample.replace(f'\n{name} = ""', f'\n{name} = "{tmp_path}"')
    values = from_file(written(tmp_path, sample))
    assert set(values) == {one.name for one in FIELDS}
    for one in FIELDS:
        if one.default is not None and one.default is not msgspec.NODEFAULT:
            assert values[one.name].value == one.default, one.name


def test_show_lists_what_rocketmqs_administration_has_changed(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    file = tmp_path / "config" / "broker.properties"
    file.write_text("fileReservedTime=24\ntraceOn=false\n")
    _, out, _ = run("config", "show", "--json", env={"COHERER_DIRECTORY": str(tmp_path)})
    rows = {row["name"]: row for row in msgspec.json.decode(out)}
    assert rows["rocketmq:fileReservedTime"] == {
        "name": "rocketmq:fileReservedTime",
        "value": '"24"',
        "source": f"{file}, changed over RocketMQ; overrides retention_hours",
    }
    assert rows["rocketmq:traceOn"]["source"] == f"{file}, changed over RocketMQ"


def test_what_kubernetes_sets_for_a_service_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    environment = {
        "COHERER_MASTER_PORT": "tcp://10.96.0.12:8715",
        "COHERER_BROKER_PORT": "tcp://[fd00::1]:8123",
        "COHERER_ADMIN_PORT": "9000",
    }
    values = from_environment(environment)
    assert {name: one.value for name, one in values.items()} == {"admin_port": 9000}
    assert "enableServiceLinks: false" in caplog.text
    with pytest.raises(UsageError, match="COHERER_MASTER_PORT"):
        from_environment({"COHERER_MASTER_PORT": "tcp://"})


def test_check_lists_all_wrong_options_in_plain_words(tmp_path: Path) -> None:
    text = 'flsh = "sync"\nflush = "never"\nbroker_port = "x"\nusers = 3\n'
    code, _, err = run("config", "check", str(written(tmp_path, text)))
    assert code == 2
    assert "4 wrong options" in err
    assert "Did you mean flush?" in err
    assert "'never' is not possible." in err
    assert "Choose from async, sync." in err
    assert "'x' is not a whole number." in err
    assert "`int`" not in err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("broker_port = 99999", "broker_port in FILE is 99999; ports are 0 to 65535."),
        ("master_port = 8080", "master_port in FILE and --admin-port are the same port, 8080."),
        ("brokers = 2\nrocketmq_port = 8133", "are the same port, 8133."),
        (
            'topic_retention = { a = "5 x" }',
            "topic_retention in FILE of a: '5 x' is not a valid retention.",
        ),
        ("hang_timeout_ms = -1", "hang_timeout_ms in FILE must be 0 or more."),
    ],
)
def test_check_finds_what_a_node_would_refuse(tmp_path: Path, text: str, expected: str) -> None:
    path = written(tmp_path, text)
    code, _, err = run("config", "check", str(path))
    assert code == 2
    assert expected.replace("FILE", str(path)) in err


def test_check_warns_about_a_console_that_cannot_work(tmp_path: Path) -> None:
    text = 'users = { me = "secret1" }\n[console]\nenabled = true\nhost = "0.0.0.0"\n'
    path = written(tmp_path, text)
    code, out, _ = run("config", "check", str(path), "--json")
    found = msgspec.json.decode(out)
    assert (code, found["file"], found["options"]) == (0, str(path), 3)
    assert [one.partition(",")[0] for one in found["warnings"]] == [
        "The node requires accounts",
        "The console does not start at 0.0.0.0 without a password",
    ]


def test_show_warns_about_a_variable_with_a_typing_error() -> None:
    code, _, err = run("config", "show", env={"COHERER_FLSH": "sync", "COHERER_X": "1"})
    assert code == 0
    assert err == (
        "warning: COHERER_FLSH is ignored: no option has this name. Did you mean COHERER_FLUSH?\n"
    )
