"""`python -m coherer.cli`, where the command is not on the path."""

from __future__ import annotations

from coherer.cli.main import main

if __name__ == "__main__":
    main()
