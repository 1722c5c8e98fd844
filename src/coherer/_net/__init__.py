"""The only room with sockets: dial, listen, and connections that collect what is written.

A `Connection` carries bytes and knows no protocol; a `Receiver` gets every socket read as one
batch.
"""

from __future__ import annotations

from coherer._net.connection import Connection, Receiver, dial
from coherer._net.limits import Inboxes, raise_open_files_limit, spare_files
from coherer._net.listener import Listener, listen
from coherer._net.process import new_event_loop, run, running_loop
from coherer._net.tls import TlsOptions

__all__ = [
    "Connection",
    "Inboxes",
    "Listener",
    "Receiver",
    "TlsOptions",
    "raise_open_files_limit",
    "dial",
    "listen",
    "new_event_loop",
    "run",
    "running_loop",
    "spare_files",
]
