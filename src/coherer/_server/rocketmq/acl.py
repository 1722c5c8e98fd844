"""Access control of a RocketMQ broker: its files, and the check of each request.

See docs/protocol/rocketmq.md, section 10.

The files are Java's: `conf/plain_acl.yml`, and every `.yml` or `.yaml` below `conf/acl`. They are
read again when their content changes; while one of them is invalid, the previous content stays in
effect. The administration writes them, and its changes take effect at once, as do those of
`coherer accounts`, which writes the same files. A file that other users can read is refused.

The files hold the secrets in plain text, as Java's do. Hashes are not possible: RocketMQ's requests
carry an HMAC-SHA1 of their fields, and TubeMQ's requests one of name, time and a number. Both are
keyed with the secret, so the node needs it to check them.

The accounts in the node's options come first, are superusers, and are in no file. A superuser is an
administrator without permission lists. TubeMQ's master, replication and the HTTP administration,
which have no permissions, accept superusers only (`Access.passwords`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from coherer._common import machine
from coherer._common.clock import IntervalTimer
from coherer._common.decoding import convert
from coherer._common.logs import Log
from coherer._common.masking import masked
from coherer._common.regular_files import read_regular
from coherer._rules.common.java_json import DataVersion
from coherer._rules.rocketmq.acl import AccessRules, Account, Request, check_listed
from coherer._server.rocketmq.permissions import Level, Resources, needed
from coherer._server.rocketmq.remoting import Channel, Refusal
from coherer._store.secret_files import changing, check_private, replace_private
from coherer._wire.rocketmq import acl as signatures
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer.errors import ProtocolError, StoreError, UsageError

_log = Log(logging.getLogger(__name__))

DEFAULT_FILE: Final = "plain_acl.yml"
TOOLS_FILE: Final = "tools.yml"
TRUSTED: Final = "globalWhiteRemoteAddresses"
ACCOUNTS: Final = "accounts"
VERSION: Final = "dataVersion"
RELOAD_MS: Final = 5_000
"""How often the files are checked for changes."""

NODE_ACCOUNT: Final = "%COHERER_NODE%"

_EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException"


Affected = Callable[[Command], bool]
"""Whether the answer to a request may be another one since accounts have changed."""


class _File(msgspec.Struct, frozen=True):
    """The content of a file."""

    digest: str
    content: dict[str, Any]
    accounts: list[Account]
    trusted: list[str]
    version: DataVersion

    def __repr__(self) -> str:
        return masked(self, "content")


class Access:
    """Decides which requests a broker or name server serves: `RemotingServer(check=access.check)`.

    Args:
        home: the directory that contains `conf`.
        now_ms: the time, ms since 1970.
        own: secrets by name of the superusers in the node's options.
        signed_queries: whether queries to the name server need a signature.

    Attributes:
        passwords: the current superusers' passwords by name.
        node_account: the name and secret with which the parts of this node sign their requests.

    Raises:
        UsageError: a file is invalid.
    """

    def __init__(
        self,
        home: Path,
        now_ms: int,
        own: Mapping[str, str] | None = None,
        *,
        signed_queries: bool = False,
    ) -> None:
        self.node_account = (NODE_ACCOUNT, machine.secret.randbytes(16).hex())
        self._own = [
            Account(access_key=name, secret_key=secret, admin=True, short=True)
            for name, secret in [*(own or {}).items(), self.node_account]
        ]
        self._signed_queries = signed_queries
        self._conf = home / "conf"
        self._default = self._conf / DEFAULT_FILE
        self._files: dict[Path, _File] = {}
        self._rules = AccessRules([], self._own)
        self._unlimited = self._rules.unlimited()
        self.passwords: Mapping[str, str] = _Passwords(lambda: self._unlimited)
        self._reload = IntervalTimer(RELOAD_MS, now_ms)
        self._watchers: list[Callable[[Affected], None]] = []
        self._load()

    def __repr__(self) -> str:
        return f"<Access, {len(self._own) + len(self.accounts)} accounts>"

    def watch(self, callback: Callable[[Affected], None]) -> None:
        """Call `callback` when accounts have changed."""
        self._watchers.append(callback)

    def check(self, channel: Channel, request: Command) -> Command | None:
        """Return the response that refuses a request, or None."""
        try:
            level, resources = needed(request)
            if level is Level.OPEN and not self._signed_queries:
                return None
            fault = self._fault(
                _address(channel), request, resources, is_admin=level is Level.ADMIN
            )
        except ProtocolError as error:
            fault = error.text
        if fault is not None:
            return Command(ResponseCode.SYSTEM_ERROR, remark=_remark(fault))
        if request.code == RequestCode.HEART_BEAT:
            channel.account = request.fields.get(signatures.ACCESS_KEY)
        return None

    def forbid(self, channel: Channel, request: Command, topic: str, bits: int) -> None:
        """Check access to a topic that the request itself does not name.

        Args:
            request: has passed `check`.
            topic: the topic, or the retry topic of a group.

        Raises:
            Refusal: the sender lacks the permission.
        """
        name = request.fields.get(signatures.ACCESS_KEY)
        fault = self._rules.lacking(_address(channel), name, ((topic, bits),))
        if fault is not None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, _remark(fault))

    def permits(self, channel: Channel, topic: str, bits: int) -> bool:
        """Whether a client may be given messages of a topic that it did not ask for."""
        # The account is the one that signed the client's last heartbeat.
        return self._rules.lacking(_address(channel), channel.account, ((topic, bits),)) is None

    def trusts(self, address: str) -> bool:
        """Whether an address is listed as trusted."""
        return self._rules.trusts(address)

    def _fault(
        self, address: str, request: Command, resources: Resources, *, is_admin: bool = False
    ) -> str | None:
        name = request.fields.get(signatures.ACCESS_KEY)
        return self._rules.fault(
            Request(
                address,
                request.code,
                name,
                resources,
                is_admin,
                lambda secret: signatures.verify(request.fields, request.body, secret),
            )
        )

    def tick(self, now_ms: int) -> None:
        """Check the files for changes when due; call it every second or so."""
        if self._reload.is_due(now_ms):
            self.reload()

    def reload(self) -> None:
        """Check the files for changes now. If one is invalid, the previous accounts stay valid."""
        try:
            if self._load():
                _log.info("Reloaded the files of access control")
        except UsageError as error:
            _log.error("Access control keeps the previous accounts: %s", error)

    # -- administration

    @property
    def accounts(self) -> list[Account]:
        """All accounts in lookup order, those of the default file last."""
        return [*_accounts(self._files)]

    @property
    def trusted(self) -> list[str]:
        """The trusted addresses, as written in the files."""
        return [text for file in self._files.values() for text in file.trusted]

    @property
    def versions(self) -> dict[str, DataVersion]:
        """The version of each file, by its path."""
        return {str(path): file.version for path, file in self._files.items()}

    @property
    def version(self) -> DataVersion:
        """The version of the default file."""
        file = self._files.get(self._default)
        return DataVersion() if file is None else file.version

    def put(self, changes: Mapping[str, object], now_ms: int) -> None:
        """Create or change an account.

        Args:
            changes: fields of an account in a file; missing fields keep their value.

        Raises:
            UsageError: the account is invalid.
            StoreError: the file could not be written.
        """
        self.revise(str(changes["accessKey"]), lambda _: changes, now_ms)

    def revise(
        self, name: str, change: Callable[[Account | None], Mapping[str, object]], now_ms: int
    ) -> None:
        """Create or change an account; nobody changes it meanwhile.

        Args:
            change: returns fields as for `put`, from the account as it is now.

        Raises:
            UsageError: the account is invalid.
            StoreError: the file could not be written.
        """
        self._check_not_own(name)
        with changing(self._conf):
            self._load()  # another process may have changed the files
            known = next((one for one in self.accounts if one.access_key == name), None)
            self._put({**change(known), "accessKey": name}, now_ms)

    def _put(self, changes: Mapping[str, object], now_ms: int) -> None:
        check_listed(cast("Sequence[str]", changes.get("topicPerms", ())))
        check_listed(cast("Sequence[str]", changes.get("groupPerms", ())))
        path = self._file_of(str(changes["accessKey"])) or self._default
        content = self._content(path)
        entries: list[dict[str, Any]] = list(content.get(ACCOUNTS) or [])
        for at, entry in enumerate(entries):
            if str(entry.get("accessKey")) == changes["accessKey"]:
                entries[at] = {**entry, **changes}
                break
        else:
            entries.append(dict(changes))
        self._write(path, {**content, ACCOUNTS: entries}, now_ms)

    def delete(self, access_key: str, now_ms: int) -> bool:
        """Delete an account. Returns whether it existed, or was used until now.

        Raises:
            UsageError: it is one of the node's options.
            StoreError: the file could not be written.
        """
        self._check_not_own(access_key)
        # If another broker of `--brokers` was first, this one learns it now.
        was_used = self._file_of(access_key) is not None
        with changing(self._conf):
            self._load()
            path = self._file_of(access_key)
            if path is None:
                return was_used
            content = self._content(path)
            entries = [
                entry for entry in content[ACCOUNTS] if str(entry.get("accessKey")) != access_key
            ]
            self._write(path, {**content, ACCOUNTS: entries}, now_ms)
        return True

    def trust(self, texts: Sequence[str], now_ms: int) -> bool:
        """Replace the trusted addresses of the default file. Returns whether the file has any.

        Raises:
            UsageError: an address is invalid.
            StoreError: the file could not be written.
        """
        with changing(self._conf):
            self._load()
            content = self._content(self._default)
            if TRUSTED not in content:
                return False
            self._write(self._default, {**content, TRUSTED: list(texts)}, now_ms)
        return True

    # -- files

    def _load(self) -> bool:
        """Read changed files. Returns whether any has changed."""
        found: dict[Path, _File] = {}
        for path in self._paths():
            try:
                data = read_regular(path)
                check_private(path)
            except OSError as error:
                raise UsageError(f"{path} cannot be read: {error}.") from error
            known = self._files.get(path)
            digest = hashlib.sha256(data).hexdigest()
            found[path] = known if known and known.digest == digest else _read(path, data, digest)
        before = self._files
        if found == before:
            return False
        self._use(found)
        self._changed(before)
        return True

    def _use(self, files: dict[Path, _File]) -> None:
        self._rules = AccessRules(
            [text for file in files.values() for text in file.trusted],
            [*self._own, *_accounts(files)],
        )
        self._unlimited = self._rules.unlimited()
        self._files = files

    def _changed(self, before: Mapping[Path, _File]) -> None:
        """Tell who is affected by a change of the files."""
        old, new = ({one.access_key: one for one in _accounts(f)} for f in (before, self._files))
        names = frozenset(one for one in {**old, **new} if old.get(one) != new.get(one))
        trusted = [text for file in before.values() for text in file.trusted]
        affected = names if trusted == self.trusted else None
        for callback in self._watchers:
            callback(lambda request: _is_of(request, affected))

    def _check_not_own(self, access_key: str) -> None:
        if any(account.access_key == access_key for account in self._own):
            raise UsageError(
                f"The account {access_key} is in the options of the node, not in a file."
            )

    def _paths(self) -> list[Path]:
        below = self._conf / "acl"
        paths = [path for path in sorted(below.rglob("*")) if path.suffix in (".yml", ".yaml")]
        return [*paths, *([self._default] if self._default.exists() else [])]

    def _file_of(self, access_key: str) -> Path | None:
        for path, file in self._files.items():
            if any(account.access_key == access_key for account in file.accounts):
                return path
        return None

    def _content(self, path: Path) -> dict[str, Any]:
        file = self._files.get(path)
        return {} if file is None else file.content

    def _write(self, path: Path, content: dict[str, Any], now_ms: int) -> None:
        file = self._files.get(path)
        version = (DataVersion() if file is None else file.version).next(now_ms)
        content[VERSION] = [msgspec.to_builtins(version)]
        data = _yaml_of(content)
        new = _read(path, data, hashlib.sha256(data).hexdigest())
        before = self._files
        self._use({**before, path: new})  # `_read` has validated the content before it is written
        try:
            replace_private(path, data)
        except OSError as error:
            self._use(before)
            raise StoreError(f"{path} cannot be written: {error}.") from error
        self._changed(before)


class _Passwords(Mapping[str, str]):
    """The superusers' passwords, read at each access."""

    def __init__(self, now: Callable[[], Mapping[str, str]]) -> None:
        self._now = now

    def __getitem__(self, name: str) -> str:
        return self._now()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def __repr__(self) -> str:
        return f"<passwords of {', '.join(self)}>"


def _accounts(files: Mapping[Path, _File]) -> Iterator[Account]:
    return (account for file in files.values() for account in file.accounts)


def _is_of(request: Command, names: frozenset[str] | None) -> bool:
    """Whether one of these accounts has signed a request; None if all may be affected."""
    return names is None or request.fields.get(signatures.ACCESS_KEY) in names


def _remark(fault: str) -> str:
    return f"{_EXCEPTION}: {fault}"


def _parsed(path: Path, data: bytes) -> object:
    import yaml  # loads slowly, and few nodes have such files

    try:
        return yaml.safe_load(data)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        fault = type(error).__name__
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            # Without the line itself, which may contain a secret.
            mark = error.problem_mark
            fault = f"{error.problem}, in line {mark.line + 1}, column {mark.column + 1}"
        raise UsageError(f"{path} is not valid YAML: {fault}.") from None


def _yaml_of(content: dict[str, Any]) -> bytes:
    import yaml  # as above

    # types-PyYAML 6.0.12.20261122 has a parameter of an unknown type.
    dump = yaml.safe_dump  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return dump(content, sort_keys=False, allow_unicode=True).encode()


def tools_account(home: Path) -> tuple[str, str] | None:
    """The account in `conf/tools.yml`, with which a broker signs its requests to other servers.

    Returns:
        Name and secret; None without such a file.

    Raises:
        UsageError: the file is invalid.
    """
    path = home / "conf" / TOOLS_FILE
    if not path.exists():
        return None
    try:
        check_private(path)
        data = read_regular(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}.") from error
    content = _parsed(path, data)
    account = cast("dict[str, object]", content) if isinstance(content, dict) else {}
    if not account.get("accessKey") or not account.get("secretKey"):
        raise UsageError(f"{path} has no accessKey and secretKey.")
    return str(account["accessKey"]), str(account["secretKey"])


def _address(channel: Channel) -> str:
    return channel.peer.rpartition(":")[0].strip("[]")


def _read(path: Path, data: bytes, digest: str) -> _File:
    content = _parsed(path, data)
    if not isinstance(content, dict) or not content:
        raise UsageError(f"{path} file is not data")
    members = cast("dict[str, Any]", content)
    try:
        return _File(
            digest,
            members,
            [_account(entry) for entry in members.get(ACCOUNTS) or ()],
            [str(text) for text in members.get(TRUSTED) or ()],
            _version(members.get(VERSION)),
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} is invalid: {error}") from error


def _account(entry: Mapping[str, Any]) -> Account:
    def text(name: str) -> str | None:
        value = entry.get(name)
        return None if value is None else str(value)

    def texts(name: str) -> list[str] | None:
        values = entry.get(name)
        return None if values is None else [str(value) for value in values]

    return Account(
        access_key=text("accessKey") or "",
        secret_key=text("secretKey") or "",
        white_remote_address=text("whiteRemoteAddress") or "",
        admin=entry.get("admin") is True,
        default_topic_perm=text("defaultTopicPerm"),
        default_group_perm=text("defaultGroupPerm"),
        topic_perms=texts("topicPerms"),
        group_perms=texts("groupPerms"),
    )


def _version(value: object) -> DataVersion:
    if not isinstance(value, list) or not value:
        return DataVersion()
    return convert(cast("list[object]", value)[0], DataVersion, strict=False)
