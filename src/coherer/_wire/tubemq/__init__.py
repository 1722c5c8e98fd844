"""The TubeMQ protocol, sans-IO: bytes to messages and back, without sockets or clocks.

From the wire upwards:

| module | what |
|---|---|
| `frame` | frames of the stream, in blocks |
| `envelope` | what stands around a message inside a frame |
| `methods` | the table of methods; `methods.parse` reads a message strictly |
| `session` | one connection as a client or server sees it |
| `messages` | every message, generated from `proto/*.proto` |
| `names`, `settings` | the texts inside messages: brokers, partitions, topics, settings |
| `payload` | a message's bytes: attributes, body, check sum |
| `sending`, `delivery`, `columns` | the hot paths of methods 13 and 17 |
| `codes` | result codes, and an exception for each |
| `credentials`, `flow` | signatures; flow control rules |
| `wire`, `texts` | what these have in common |

Section numbers in comments are those of the project's page on the TubeMQ protocol.
"""
