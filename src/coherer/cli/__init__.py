"""The command line: `coherer serve`, `topics`, `produce`, `audit` and the other commands.

Each command has a module. Modules import typer and option definitions at the top, and clients and
servers when a command runs, so that `coherer --help` responds at once.
"""
