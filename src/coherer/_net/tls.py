"""TLS options and the contexts made from them."""

from __future__ import annotations

import os
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from coherer._common.masking import masked
from coherer.errors import UsageError


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """TLS settings of a client or server.

    Args:
        certificate: PEM file with the own certificate chain; required for a server.
        key: PEM file with the private key, if `certificate` does not contain it.
        key_password: password of the private key.
        trust: PEM file with trusted authorities; None for those of the system.
        verify: a client checks the server's certificate and host name; a server with `trust`
            requires a client certificate and checks it.

    >>> TlsOptions(verify=False).client_context().check_hostname
    False
    """

    certificate: Path | None = None
    key: Path | None = None
    key_password: str | None = None
    trust: Path | None = None
    verify: bool = True

    def __repr__(self) -> str:
        return masked(self, "key_password")

    def client_context(self) -> ssl.SSLContext:
        """Create the context of a client.

        Raises:
            UsageError: a file cannot be read or has the wrong content, or SSL_CERT_FILE in the
                environment names no file.
        """
        named = os.environ.get("SSL_CERT_FILE")
        if named and self.verify and self.trust is None:
            with _naming("SSL_CERT_FILE", Path(named)):
                Path(named).stat()  # Python ignores a missing file
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        self._load(context)
        return context

    def server_context(self) -> ssl.SSLContext:
        """Create the context of a server.

        Raises:
            UsageError: no certificate is set, or a file cannot be used.
        """
        if self.certificate is None:
            raise UsageError("A server with TLS needs a certificate.", hint="Set `certificate`.")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        if self.trust is not None and self.verify:
            context.verify_mode = ssl.CERT_REQUIRED
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        for option, file in {
            "trust": self.trust,
            "certificate": self.certificate,
            "key": self.key,
        }.items():
            if file is not None:
                with _naming(option, file):
                    if file.exists() and not file.is_file():  # opening a FIFO would wait
                        raise ValueError("it is not a regular file")
        if self.trust is not None:
            with _naming("trust", self.trust):
                context.load_verify_locations(self.trust)
        if self.certificate is None:
            return
        with _naming("certificate", self.certificate):
            ssl.create_default_context().load_verify_locations(self.certificate)
        key = self.key or self.certificate
        with _naming("key", key):
            context.load_cert_chain(self.certificate, self.key, self.key_password or _no_password)


def fingerprint(options: TlsOptions) -> tuple[tuple[int, int, int] | None, ...]:
    """Describe the files of TLS settings; it differs once one of them has changed."""
    return tuple(map(_stamp, (options.certificate, options.key, options.trust)))


def _stamp(file: Path | None) -> tuple[int, int, int] | None:
    try:
        found = None if file is None else file.stat()
    except OSError:
        return None
    return None if found is None else (found.st_ino, found.st_size, found.st_mtime_ns)


def _no_password() -> str:
    """Fail instead of letting OpenSSL ask for the password on the terminal."""
    raise ValueError("the key is encrypted, and `key_password` is not set")


@contextmanager
def _naming(option: str, file: Path) -> Generator[None]:
    """Turn errors of the block into a `UsageError` that names option and file."""
    try:
        yield
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        text = str(error) if isinstance(error, ValueError) else error.strerror or str(error)
        hint = "It must be a PEM file."
        if isinstance(error, FileNotFoundError | PermissionError):
            hint = ""
        elif "KEY_VALUES_MISMATCH" in str(error):
            text, hint = "it is not the key of the certificate", ""
        raise UsageError(
            f"`{option}`: the file {file} cannot be used: {text}.", hint=hint
        ) from error
