"""The RocketMQ door: name server and broker."""
