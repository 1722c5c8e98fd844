"""`python -m coherer` runs the command `coherer`."""

from __future__ import annotations

from coherer.cli.entry import main

if __name__ == "__main__":
    main()
