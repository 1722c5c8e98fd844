"""Renews the certificate of a node's ports without a restart.

Invariants:

* New connections get the new files, on all ports with TLS alike; existing connections keep theirs.
* Files that cannot be used change nothing: the ports keep the previous certificate, and `problem`
  says why until usable files are there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from coherer import _net as net
from coherer._common.logs import Log
from coherer._net.tls import fingerprint
from coherer.errors import UsageError

_log = Log(logging.getLogger(__name__))


class Certificates:
    """The TLS files of a node.

    Args:
        tls: the settings; None without TLS.
        listeners: returns the ports of the node.

    Attributes:
        problem: why the files on disk are not in use; empty if they are.
    """

    def __init__(
        self, tls: net.TlsOptions | None, listeners: Callable[[], Sequence[net.Listener]]
    ) -> None:
        self._tls = tls
        self._listeners = listeners
        self._seen = fingerprint(tls) if tls is not None else ()
        self._forced = False
        self.problem = ""

    def reload(self) -> None:
        """Read the files at the next `check` even if they look the same."""
        self._forced = True

    async def check(self) -> None:
        """Use the files if they have changed; call it every second or so."""
        if self._tls is None:
            return
        seen = fingerprint(self._tls)
        if seen == self._seen and not self._forced:
            return
        self._seen, self._forced = seen, False
        try:
            context = self._tls.server_context()
        except UsageError as error:
            self.problem = str(error)
            _log.plain.error("New TLS files are not used, the previous ones stay: %s", error)
            return
        for listener in self._listeners():
            listener.renew(context)
        self.problem = ""
        _log.plain.warning("Read the TLS files again; new connections use them")
