"""Broker rules of TubeMQ: pure decisions, given the time."""
