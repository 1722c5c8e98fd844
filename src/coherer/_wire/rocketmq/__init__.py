"""The RocketMQ protocol, sans-IO: bytes in, objects out, and back. No socket, no clock.

From the wire upwards:

| module | what |
|---|---|
| `frame` | frames of the stream |
| `command` | a request or an answer: header in JSON or binary, and body |
| `session` | one connection, either end |
| `codes`, `language`, `versions` | the protocol's numbers, and an exception for each answer of no |
| `headers` | custom headers with types |
| `fastjson` | the JSON of Java's peers: bare keys, objects as keys, references |
| `bodies` | bodies with types: heartbeats, routes, topics, groups, offsets, statistics |
| `names` | queues, topics, groups, namespaces |
| `acl` | signatures |
| `messages`, `batches` | what becomes of a message on its way |
| `sending`, `pulling`, `delivery`, `columns` | the hot paths |
| `subscription`, `selector`, `bloom` | what a consumer wants of a topic |
| `allocate` | which queues a member of a group reads |
| `settings` | the settings of servers as text |

Section numbers in comments are those of the project's page on the RocketMQ protocol.
"""
