"""The RocketMQ server of a node: name server, broker and replication."""
