"""Serves the console with uvicorn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, NamedTuple

import uvicorn

from coherer import _net as net
from coherer._common.upkeep import Step, Upkeep
from coherer.console.app import running
from coherer.console.options import ConsoleOptions
from coherer.errors import UnavailableError, UsageError

STOP_S = 3
"""Time for running requests when the server stops."""

TLS_EVERY_MS: Final = 1_000
"""Interval of checks whether the TLS files have changed."""


class Serving(NamedTuple):
    """A running console: its URL for browsers, and its TLS files; None without TLS."""

    url: str
    certificates: net.Certificates | None


class _Server(uvicorn.Server):
    """A server that leaves signals to its caller."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Do not handle signals."""
        yield


@asynccontextmanager
async def served(options: ConsoleOptions) -> AsyncGenerator[Serving]:
    """Serve a console until the block ends.

    Raises:
        UsageError: an option is malformed, a TLS file cannot be used, or the server cannot listen
            on the address.
    """
    async with running(options) as app:
        config = uvicorn.Config(
            app,
            host=options.host.strip("[]"),
            port=options.port,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=STOP_S,
            proxy_headers=False,
        )
        certificates = _with_tls(config, options)
        server = _Server(config)
        try:  # uvicorn would log a failure on its own, and end the process
            bound = await net.bound_socket(options.host.strip("[]"), options.port)
        except UsageError as error:
            text = f"The console cannot start. {error.text}"
            raise UsageError(text, hint=error.hint) from error
        serving = asyncio.create_task(server.serve([bound]), name="serve the console")
        upkeep = Upkeep()
        if certificates is not None:
            upkeep.add(Step("checking TLS files", certificates.check, TLS_EVERY_MS))
        tasks = upkeep.start()
        try:
            while not server.started:
                if serving.done():
                    serving.result()
                    raise UnavailableError("The console stopped while it started.")
                await asyncio.sleep(0.01)
            yield Serving(_url(options, server), certificates)
        finally:
            server.should_exit = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(serving, *tasks, return_exceptions=True)


def _with_tls(config: uvicorn.Config, options: ConsoleOptions) -> net.Certificates | None:
    """Have uvicorn serve TLS with a context whose files can be replaced at any time."""
    if options.tls_cert is None:
        return None
    tls = net.TlsOptions(certificate=options.tls_cert, key=options.tls_key)
    config.load()
    config.ssl = tls.server_context()
    port = net.FixedContext(config.ssl)
    return net.Certificates(tls, lambda: [port])


def _url(options: ConsoleOptions, server: uvicorn.Server) -> str:
    if options.public_url is not None:
        return options.public_url
    port: int = server.servers[0].sockets[0].getsockname()[1]
    scheme = "https" if options.tls_cert is not None else "http"
    host = options.host if options.host not in {"0.0.0.0", "::"} else "127.0.0.1"  # noqa: S104
    return f"{scheme}://{f'[{host}]' if ':' in host.strip('[]') else host}:{port}"
