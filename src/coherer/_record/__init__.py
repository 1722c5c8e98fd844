"""The stored message: RocketMQ 4.9's record, its property text, ids, tag hash and compression.

The modules are the interface: `layout` (bytes and `Record`), `properties`, `ids`, `hashing`,
`compression`.
"""
