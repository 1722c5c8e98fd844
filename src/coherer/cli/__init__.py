"""The command line: `coherer serve`, `topics`, `produce`, `audit` and the other commands.

Each command has a module, which is imported when the command is called; `coherer --help` imports
none of them. Inside functions, modules import what most of their calls do not need.
"""
