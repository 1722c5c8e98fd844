"""Broker rules of both protocols: pure decisions, given the time."""
