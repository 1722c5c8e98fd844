"""The rules of a message queue: who owns what, who may read, how far a group is.

Nothing here knows a protocol, a socket or a file, and the time is told (`now_ms`).
"""
