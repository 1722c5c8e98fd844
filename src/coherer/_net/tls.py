"""TLS as options; the contexts are made here so that no other room needs `ssl`."""

from __future__ import annotations

import ssl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from coherer._common.masking import masked
from coherer.errors import UsageError


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a connection is made secret, for either side.

    Args:
        certificate: PEM file with our own certificate chain; a server needs one.
        key: PEM file with its private key, when it is not in `certificate`.
        key_password: opens the private key.
        trust: PEM file with the authorities that we trust; the system's when None.
        verify: as a client, check the server's certificate and host name; as a server with
            `trust`, ask clients for a certificate and check it.

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
        """The context of a dialler.

        Raises:
            UsageError: a file cannot be read or does not hold what it should.
        """
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        self._load(context)
        return context

    def server_context(self) -> ssl.SSLContext:
        """The context of a listener.

        Raises:
            UsageError: there is no certificate, or a file cannot be used.
        """
        if self.certificate is None:
            raise UsageError("A server with TLS needs a certificate.", hint="Set `certificate`.")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        if self.trust is not None and self.verify:
            context.verify_mode = ssl.CERT_REQUIRED
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        if self.trust is not None:
            with _names("trust", self.trust):
                context.load_verify_locations(self.trust)
        if self.certificate is None:
            return
        with _names("certificate", self.certificate):
            ssl.create_default_context().load_verify_locations(self.certificate)
        key = self.key or self.certificate
        with _names("key", key):
            context.load_cert_chain(self.certificate, self.key, self.key_password or _no_password)


def _no_password() -> str:
    """Instead of OpenSSL's question on the terminal, for which nobody may be there."""
    raise ValueError("the key is encrypted, and `key_password` is not set")


@contextmanager
def _names(option: str, file: Path) -> Generator[None]:
    """Inside, an error names the option and the file that are wrong."""
    try:
        yield
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        text = str(error) if isinstance(error, ValueError) else error.strerror or str(error)
        hint = "It has to be a PEM file."
        if isinstance(error, FileNotFoundError | PermissionError):
            hint = ""
        elif "KEY_VALUES_MISMATCH" in str(error):
            text, hint = "it is not the key of the certificate", ""
        raise UsageError(
            f"`{option}` of TLS, {file}, cannot be used: {text}.", hint=hint
        ) from error
