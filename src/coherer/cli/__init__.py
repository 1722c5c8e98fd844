"""The command line: `coherer serve`, `topics`, `produce`, `consume`, `groups`, `demo`.

A module per command. Modules import typer and what formats output; everything that does the work is
imported when a command runs, so that `coherer --help` answers at once.
"""
