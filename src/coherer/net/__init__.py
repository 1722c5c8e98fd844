"""The only room with sockets: dial, listen, and connections that collect what is written.

A `Connection` carries bytes and knows no protocol; a `Receiver` gets every socket read as one
batch.
"""

from __future__ import annotations

from coherer.net.connection import Connection, Receiver
from coherer.net.dialer import dial
from coherer.net.inboxes import Inboxes
from coherer.net.listener import Listener, listen
from coherer.net.loop import new_event_loop, run, running_loop
from coherer.net.places import allow_files, spare_files
from coherer.net.tls import TlsOptions

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
