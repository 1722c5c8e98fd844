"""`python -m coherer` does what the command `coherer` does."""

from __future__ import annotations

from coherer.cli.entry import main

if __name__ == "__main__":
    main()
