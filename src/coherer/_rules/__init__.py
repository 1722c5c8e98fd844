"""The rules of a message queue: who owns what, who may read, how far a group is.

Nothing here knows a protocol, a socket or a file, and callers pass the time (`now_ms`).
"""
