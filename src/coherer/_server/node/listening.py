"""Hints for errors when a port cannot be opened."""

from __future__ import annotations

import errno
from typing import Final

from coherer._server.options.node import NodeOptions

_OF_THE_PORT: Final = frozenset({errno.EADDRINUSE, errno.EACCES})
"""Errors of the port itself: the address is valid."""


def listen_hint(options: NodeOptions, port: int, error: Exception) -> str:
    """The option to change, in a sentence; "" if no option sets the port.

    >>> from pathlib import Path
    >>> options = NodeOptions(directory=Path("data"), admin_port=9000)
    >>> error = Exception("Cannot listen on 127.0.0.1:9000.")
    >>> listen_hint(options, 9000, error)
    '`admin_port` sets the port.'
    >>> error.__cause__ = OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
    >>> listen_hint(options, 9000, error)
    '`host` sets it.'
    """
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno not in _OF_THE_PORT:
        return "`host` sets it."
    option = options.port_option(port)
    return f"`{option}` sets the port." if option else ""
