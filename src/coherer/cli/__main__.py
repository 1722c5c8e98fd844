"""`python -m coherer.cli`: the command line without the script `coherer`."""

from __future__ import annotations

from coherer.cli.main import main

if __name__ == "__main__":
    main()
