"""Replication: a master's log is copied to its slaves (docs/protocol/rocketmq.md, section 6.12)."""
