"""TLS: trust between clients and servers, and unusable files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coherer import _net as net
from coherer.errors import ConnectError, UsageError
from tests.net.peers import PEM, Peer, echoing

SERVER = net.TlsOptions(certificate=PEM)
EXPIRED = PEM.with_name("expired.pem")
TRUSTING = net.TlsOptions(trust=PEM)


@pytest.fixture
async def listener() -> AsyncIterator[net.Listener]:
    listener = await net.listen("127.0.0.1", 0, echoing, tls=SERVER)
    yield listener
    await listener.close()


@pytest.mark.parametrize(
    ("host", "options"),
    [
        ("127.0.0.1", TRUSTING),
        ("localhost", TRUSTING),
        ("127.0.0.1", net.TlsOptions(verify=False)),
    ],
)
async def test_bytes_travel_over_tls(
    listener: net.Listener, host: str, options: net.TlsOptions
) -> None:
    peer = await net.dial(host, listener.port, Peer, tls=options)
    assert peer.connection.secure
    data = bytes(range(256)) * 5000
    peer.connection.write(data)
    await peer.until_data(data)
    peer.connection.close()


async def test_an_unknown_certificate_is_refused(listener: net.Listener) -> None:
    with pytest.raises(ConnectError, match=str(listener.port)) as caught:
        await net.dial("127.0.0.1", listener.port, Peer, tls=net.TlsOptions())
    assert "self-signed certificate" in caught.value.text
    assert "TlsOptions(trust=" in caught.value.hint


@pytest.mark.parametrize(
    ("host", "certificate", "says", "hint"),
    [
        ("127.0.0.1", EXPIRED, "certificate has expired.", "needs a new certificate"),
        ("0.0.0.0", PEM, "not valid for '0.0.0.0'.", "a host name that the certificate names"),
    ],
)
async def test_the_reason_why_a_certificate_is_refused(
    host: str, certificate: Path, says: str, hint: str
) -> None:
    server = net.TlsOptions(certificate=certificate)
    listener = await net.listen("127.0.0.1", 0, echoing, tls=server)
    with pytest.raises(ConnectError) as caught:
        await net.dial(host, listener.port, Peer, tls=net.TlsOptions(trust=certificate))
    assert caught.value.text.endswith(says)
    assert hint in caught.value.hint
    assert "trust" not in caught.value.hint.lower()
    await listener.close()


async def test_dialling_a_plain_port_with_tls_fails() -> None:
    def hang_up(connection: net.Connection) -> Peer:
        connection.close()
        return Peer(connection)

    for make, says in ((hang_up, "handshake failed"), (echoing, "handshake failed")):
        async with asyncio.timeout(10):
            listener = await net.listen("127.0.0.1", 0, make)
            with pytest.raises(ConnectError, match=says) as caught:
                await net.dial("127.0.0.1", listener.port, Peer, tls=TRUSTING)
            assert caught.value.hint == "Is that a port for TLS?"
            await listener.close()


async def test_plain_bytes_on_a_tls_port_end_only_their_connection(
    listener: net.Listener, caplog: pytest.LogCaptureFixture
) -> None:
    plain = await net.dial("127.0.0.1", listener.port, Peer)
    plain.connection.write(b"no TLS at all, and long enough to be read as something else")
    await plain.until_closed()
    assert listener.connections == 0
    assert "the TLS handshake failed: wrong version number" in caplog.text
    await test_bytes_travel_over_tls(listener, "127.0.0.1", TRUSTING)


async def test_a_server_can_require_a_client_certificate() -> None:
    both = net.TlsOptions(certificate=PEM, trust=PEM)
    listener = await net.listen("127.0.0.1", 0, echoing, tls=both)
    peer = await net.dial("127.0.0.1", listener.port, Peer, tls=both)
    peer.connection.write(b"hello")
    await peer.until_data(b"hello")
    await listener.close()


async def test_a_server_says_whom_it_refuses(caplog: pytest.LogCaptureFixture) -> None:
    """Clients may not be told why."""
    server = net.TlsOptions(certificate=PEM, trust=PEM)
    listener = await net.listen("127.0.0.1", 0, echoing, tls=server)
    for certificate, reason in ((None, "peer did not return"), (EXPIRED, "self-signed")):
        client = net.TlsOptions(certificate=certificate, trust=PEM)
        try:
            peer = await net.dial("127.0.0.1", listener.port, Peer, tls=client)
            await peer.until_closed()  # TLS 1.3: the client takes the handshake for complete
        except ConnectError:
            pass
        assert f"the TLS handshake failed: {reason}" in caplog.text
    assert "Refusing 127.0.0.1:" in caplog.text
    await listener.close()


async def test_unusable_files_are_refused(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("nothing")
    with pytest.raises(UsageError, match="certificate"):
        await net.listen("127.0.0.1", 0, echoing, tls=net.TlsOptions())
    for options, expected in (
        (net.TlsOptions(certificate=bad), r"`certificate`: .*bad\.pem.* PEM"),
        (net.TlsOptions(certificate=PEM, key=bad), r"`key`: .*bad\.pem.* PEM"),
        (net.TlsOptions(certificate=PEM, trust=tmp_path / "missing.pem"), r"missing\.pem"),
    ):
        with pytest.raises(UsageError, match=expected):
            await net.listen("127.0.0.1", 0, echoing, tls=options)
    with pytest.raises(UsageError, match="PEM"):
        await net.dial("127.0.0.1", 1, Peer, tls=net.TlsOptions(trust=bad))


def test_a_missing_file_in_the_environment_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
    with pytest.raises(UsageError, match=r"`SSL_CERT_FILE`: .*missing\.pem"):
        net.TlsOptions().client_context()
    for unused in (net.TlsOptions(trust=PEM), net.TlsOptions(verify=False)):
        assert unused.client_context()
    monkeypatch.setenv("SSL_CERT_FILE", str(PEM))
    assert net.TlsOptions().client_context().get_ca_certs()
