"""The RocketMQ protocol, sans-IO: bytes to objects and back, without sockets or clocks.

From the wire upwards:

| module | contents |
|---|---|
| `frame` | frames of the stream |
| `command` | a request or an answer: header in JSON or binary, and body |
| `session` | one connection, either side |
| `codes` | request and response codes, languages, releases, and an exception for each error |
| `headers` | typed custom headers |
| `fastjson` | the JSON of Java's peers: unquoted keys, objects as keys, references |
| `bodies` | typed bodies: heartbeats, routes, topics, groups, offsets, statistics |
| `names` | queues, topics, groups, namespaces |
| `acl` | signatures |
| `messages` | a user's message as RocketMQ carries it, alone and in a batch |
| `sending`, `pulling`, `delivery` | the hot paths |
| `bad_records` | why a pull lacks messages |
| `subscription`, `selector` | the messages of a topic that a consumer wants |
| `allocate` | the queues that each member of a group reads |
| `java_properties` | the settings of servers as text |

Sections in comments are those of docs/protocol/rocketmq.md.
"""
