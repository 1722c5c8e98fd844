"""The servers: TubeMQ's master and broker, RocketMQ's name server and broker, and the node.

A server translates requests into calls of the rules in `coherer._rules` and of the store, and
their results into responses.
"""
