"""Sockets: dialling, listening, and connections that collect written bytes.

A `Connection` carries bytes and knows no protocol; a `Receiver` gets every socket read as one
batch. No other package opens sockets.
"""

from __future__ import annotations

from coherer._net.certificates import Certificates, FixedContext
from coherer._net.connection import (
    Connection,
    Receiver,
    certificate_refused,
    dial,
    tls_failed,
)
from coherer._net.limits import (
    UNFINISHED_BYTES_MIN,
    WRITE_BUFFER_BYTES_MIN,
    ConnectionBudget,
    ConnectionLimits,
)
from coherer._net.listener import Listener, bound_socket, kept_ports, listen
from coherer._net.process import (
    check_loop,
    memory,
    new_event_loop,
    raise_open_files_limit,
    run,
    running_loop,
)
from coherer._net.service_manager import ServiceManager
from coherer._net.tls import TlsOptions

__all__ = [
    "UNFINISHED_BYTES_MIN",
    "WRITE_BUFFER_BYTES_MIN",
    "Certificates",
    "Connection",
    "ConnectionBudget",
    "ConnectionLimits",
    "FixedContext",
    "Listener",
    "Receiver",
    "ServiceManager",
    "TlsOptions",
    "bound_socket",
    "certificate_refused",
    "check_loop",
    "dial",
    "kept_ports",
    "listen",
    "memory",
    "new_event_loop",
    "raise_open_files_limit",
    "run",
    "running_loop",
    "tls_failed",
]
