"""The servers: a master and a broker for TubeMQ, and the node that holds them.

A server translates: a request becomes a call of the rules in `coherer._rules` and of the store, and
what they say becomes an answer.
"""
