"""Broker rules of RocketMQ: pure decisions, given the time."""
