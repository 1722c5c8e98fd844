"""Broker rules of RocketMQ: pure decisions that take the time as an argument."""
