"""The entry point of the command `coherer`; loads the command line.

Loading takes tenths of a second, and a signal in that time would end the process. So this module
imports little. From the first moment it remembers a SIGHUP for `coherer serve`, and ends a command
on SIGTERM as on Ctrl-C.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext, suppress

from coherer._common.loading import collector_paused
from coherer._common.version import __version__
from coherer.cli.early import remembered, terminated_as_interrupted


def main() -> None:
    """Run the command that the arguments of the process name."""
    # Scripts ask for the version, and loading the commands takes 90 ms.
    if sys.argv[1:] == ["--version"] and sys.stdout is not None:
        with suppress(OSError):  # the command line knows what to say then
            sys.stdout.write(f"coherer {__version__}\n")
            sys.stdout.flush()
            return
    with remembered("SIGHUP") if sys.argv[1:2] == ["serve"] else nullcontext():
        try:
            terminated_as_interrupted()
            with collector_paused():
                # From here on, a SIGHUP is remembered.
                from coherer.cli.main import main as run
        except KeyboardInterrupt:  # as the commands do, which are not loaded
            sys.exit(130)
        run()
