"""Power cuts of a store whose files are the machine's own."""

from __future__ import annotations

from pathlib import Path

from coherer._record.layout import HEAD_V4
from coherer._store import OsFiles


class Unknown(OsFiles):
    """A system that does not say when it was started: each crash counts as a power cut."""

    def boot_id(self) -> bytes:
        return b""


class Booted(OsFiles):
    """A system that says when it was started: a crash is a power cut if that differs."""

    def __init__(self, boot: bytes) -> None:
        super().__init__()
        self._boot = boot

    def boot_id(self) -> bytes:
        return self._boot


def tear(directory: Path, body: bytes) -> None:
    """Take back the record whose body begins so, from a log of one file; leave those behind it.

    Its size is gone, too: Java's slaves pass over a record that has one.
    """
    [path] = (directory / "commitlog").iterdir()
    data = bytearray(path.read_bytes())
    at = data.index(body)
    begin, end = at - HEAD_V4.size, at + len(body)
    data[begin:end] = bytes(end - begin)
    path.write_bytes(data)
