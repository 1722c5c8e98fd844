"""How many connections a process may accept: each takes a file, and files are few.

All ports share the places. What the process may open beyond them is left to the store: without
files it could not write, and a flood of connections would end the service of those that are there.
"""

from __future__ import annotations

import logging
import sys
from typing import Final

from coherer import limits
from coherer._common.logs import Log

_log = Log(logging.getLogger(__name__))


class Places:
    """Counts the accepted connections of the process.

    Attributes:
        taken: how many there are.
    """

    def __init__(self) -> None:
        self.taken = 0

    def take(self) -> bool:
        """Have one more, if there may be."""
        if self.taken >= places_max(files_max()):
            return False
        self.taken += 1
        return True

    def give(self) -> None:
        """Have one less."""
        self.taken -= 1


PLACES: Final = Places()
"""Those of this process."""


def places_max(files: int) -> int:
    """How many of the files that may be open connections may be.

    >>> places_max(20_000), places_max(256)
    (19616, 128)
    """
    return max(files - limits.FILES_RESERVED, files // 2)


def spare_files() -> int:
    """How many files the store may hold open beside those that it needs: half of what is left.

    It becomes less as connections come; the other half is for those that come next.
    """
    files = files_max()
    left = files - PLACES.taken - limits.FILES_RESERVED
    return max(left // 2, min(limits.QUEUE_FILES_MIN, files // 4))


if sys.platform == "win32":

    def files_max() -> int:
        """How many files and sockets the process may open; Windows has no such limit."""
        return limits.FILES_MAX

    def raise_open_files_limit() -> int:
        """Nothing to do."""
        return files_max()

else:
    import resource

    def files_max() -> int:
        """How many files and sockets the process may open."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return limits.FILES_MAX if soft == resource.RLIM_INFINITY else soft

    def raise_open_files_limit() -> int:
        """Let the process open as many files as the system lets it, but no more than we can use.

        For a process that is a server and nothing else. Gives how many it may open.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = limits.FILES_MAX if hard == resource.RLIM_INFINITY else hard
        wanted = min(wanted, limits.FILES_MAX)
        if soft not in (resource.RLIM_INFINITY, wanted) and soft < wanted:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            except (OSError, ValueError) as error:  # macOS has a lower limit than it says
                _log.plain.warning("No more than %d files can be open: %s", soft, error)
        return files_max()
