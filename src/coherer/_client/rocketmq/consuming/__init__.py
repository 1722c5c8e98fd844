"""Consumers and readers of RocketMQ."""
