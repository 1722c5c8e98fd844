"""Producers of RocketMQ."""
