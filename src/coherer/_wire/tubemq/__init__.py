"""The TubeMQ protocol, sans-IO: bytes to messages and back, without sockets or clocks.

From the wire upwards:

| module | contents |
|---|---|
| `frame` | frames of the stream, in blocks |
| `envelope` | the RPC headers around a message, and the protobuf encoding of single fields |
| `methods` | the table of methods; `methods.parse` reads a message strictly |
| `session` | one connection as a client or a server sees it |
| `messages` | every message, generated from `proto/*.proto` |
| `names` | the texts inside messages: brokers, partitions, topics, settings |
| `payload` | the bytes of a user's message: attributes, body, checksum |
| `sending`, `delivery` | the hot paths of methods 13 and 17 |
| `columns`, `scanned` | delivered messages as Arrow columns; a whole answer at once, by numpy |
| `stored` | stored records as TubeMQ messages |
| `bad_records` | why a message is bad |
| `codes` | result codes, and an exception for each |
| `credentials`, `flow` | signatures; flow control rules |

Sections in comments are those of docs/protocol/tubemq.md.
"""
