"""Replication: a master's log goes to its slaves as it is (protocol page, 6.12)."""
