"""The only room with sockets: dial, listen, and connections that collect what is written.

A `Connection` carries bytes and knows no protocol; a `Receiver` gets every socket read as one
batch.
"""

from __future__ import annotations

from coherer._net.connection import Connection, Receiver
from coherer._net.dialer import dial
from coherer._net.inboxes import Inboxes
from coherer._net.listener import Listener, listen
from coherer._net.loop import new_event_loop, run, running_loop
from coherer._net.places import allow_files, spare_files
from coherer._net.tls import TlsOptions

__all__ = [
    "Connection",
    "Inboxes",
    "Listener",
    "Receiver",
    "TlsOptions",
    "allow_files",
    "dial",
    "listen",
    "new_event_loop",
    "run",
    "running_loop",
    "spare_files",
]
