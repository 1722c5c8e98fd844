"""Hard limits of both protocols and of the servers, with their reasons. Names end with the unit.

Limits that users can set are options; these are their defaults or upper bounds. The limits of
sockets and buffers belong to a node or a client: `coherer._net.ConnectionLimits`.
"""

from __future__ import annotations

from typing import Final

# -- TubeMQ's protocol

BLOCK_BYTES: Final = 8192
"""Size of every block but the last in a TubeMQ frame (Java's ByteBufferOutputStream)."""

FRAME_BLOCKS_MAX: Final = 3584
"""Blocks in a TubeMQ frame: (20 MiB message + 8 MiB slack) / 8192, checked by Java's decoder."""

FRAME_BYTES_MAX: Final = FRAME_BLOCKS_MAX * BLOCK_BYTES
"""Payload of a TubeMQ frame. Java has no limit; without one a peer could fill the memory."""

MESSAGE_BYTES_DEFAULT: Final = 1024 * 1024
"""Largest message of a TubeMQ producer unless the master sets another limit."""

MESSAGE_BYTES_MAX: Final = 20 * 1024 * 1024
"""Highest limit for messages that a TubeMQ master may set."""

MESSAGE_SLACK_BYTES: Final = 10240
"""Bytes beyond the limit for messages that a broker accepts, for attributes."""

TOPIC_CHARS_MAX: Final = 64
"""Length of a TubeMQ topic name, checked by Java's master and broker."""

GROUP_CHARS_MAX: Final = 1024
CLIENT_ID_CHARS_MAX: Final = 1024
HOST_CHARS_MAX: Final = 256
FILTER_CHARS_MAX: Final = 256
FILTERS_MAX: Final = 500
TOPICS_PER_CLIENT_MAX: Final = 1024
"""Java's servers check these six and refuse clients that exceed them with code 400."""

TOPIC_PARTITIONS_MAX: Final = 10_000
"""Partitions of a topic in one store: the id of a partition is store * 10000 + partition."""

TOPIC_STORES_MAX: Final = 1_000
"""Stores of a topic on one broker. Java has no limit; the id of a partition has 31 bits."""

# -- RocketMQ's protocol

PROPERTIES_BYTES_MAX: Final = 32767
"""Property text of a stored record: its length is a signed 16-bit number (RocketMQ 4.9)."""

TOPIC_BYTES_MAX: Final = 127
"""Topic of a stored record: its length is a signed byte (RocketMQ 4.9)."""

REMOTING_BYTES_MAX: Final = 16 * 1024 * 1024
"""A frame of RocketMQ's remoting, including its length (Java's `frameMaxLength`)."""

REMOTING_HEADER_BYTES_MAX: Final = 1024 * 1024
"""The header of a RocketMQ command: the largest contains 32 KiB of properties, each character of
which may take six bytes."""

SETTINGS_BYTES_MAX: Final = 256 * 1024
"""Settings that a RocketMQ server accepts in one request; all of Java's take 10 KiB."""

NAME_CHARS_MAX: Final = 255
"""Name of a group that a RocketMQ client names, and id of a client: Java's clients check that."""

JSON_VALUES_MAX: Final = 80_000
"""Values of a JSON body that needs the lenient reader: that many take a third of a second. 10,000
queues with their offsets fit."""

JSON_OBJECTS_MAX: Final = 200_000
"""Objects and lists of any JSON body: a broker with 100,000 topics registers with fewer."""

JSON_DEPTH_MAX: Final = 64
"""Nesting of objects and lists in a JSON body: RocketMQ's own have at most 8 levels."""

HEARTBEAT_OBJECTS_MAX: Final = 10_000
"""Consumers, subscriptions and producers of one heartbeat, or queues of one lock request: a broker
processes them all in one turn of the event loop."""

SELECTOR_CHARS_MAX: Final = 64 * 1024
"""Length of an SQL92 selector."""

SELECTOR_TOKENS_MAX: Final = 10_000
"""Tokens of an SQL92 selector: a broker compiles it in one turn of the event loop, and that many
take a fifth of a second."""

SELECTORS_PER_HEARTBEAT_CHARS: Final = 32 * 1024
"""Length of all SQL92 selectors of a heartbeat with several, for the same reason."""

SELECTOR_DEPTH_MAX: Final = 200
"""Nesting of an SQL92 selector: each level is a nested call (Java's stack overflows at some
thousands)."""

# -- masters and name servers

UNSIGNED_REGISTRATIONS_MAX: Final = 1_000
UNSIGNED_REGISTRATION_BYTES_MAX: Final = 64 * 1024
"""Number and size of the registrations that a master with authentication keeps until the consumer
has signed: Java's consumers cannot sign before their second heartbeat."""

TOPICS_MAX: Final = 10_000
"""Topics of a TubeMQ cluster, and of a RocketMQ broker, up to which clients create further ones by
using them: each takes files and memory. Administrators may create more."""

GROUPS_MAX: Final = 10_000
"""Groups of a RocketMQ broker up to which clients create further ones by using them: each also has
a topic for retries. Administrators may create more."""

CLIENTS_MAX: Final = 100_000
"""Producers of a master, and consumers of a master: about 1 KiB each. The same for a RocketMQ
broker, where a client counts once for each of its groups."""

SUBSCRIPTIONS_CHARS_MAX: Final = 32 * 1024 * 1024
"""Topics and filters of all consumers of a RocketMQ broker; they take up to ten bytes for each
character."""

FILTERS_CHARS_MAX: Final = 1024 * 1024
"""SQL92 selectors that a RocketMQ broker remembers, those of groups that are gone among them: when
compiled, they take up to 200 bytes for each character."""

# -- brokers

TIMER_DELAY_MS_MAX: Final = 3 * 24 * 3_600_000
"""Longest delay of a timed message (5.x: `timerMaxDelaySec`)."""

TIMER_SLOT_MESSAGES_MAX: Final = 1_000_000
"""Timed messages that are due in the same five minutes: they take 50 bytes of memory each when they
become due. Further ones are refused."""

LEASES_MAX: Final = 65_536
"""Partitions of a broker that are read at the same time: about 1 KiB each."""

LOCKS_MAX: Final = 100_000
"""Locks on queues of a RocketMQ broker, half a KiB each. Further ones are not granted."""

WAITING_PULLS_MAX: Final = 100_000
"""Pulls that wait for a message at one broker, about 2 KiB each; Java's queue of requests has the
same limit. Further ones are answered with "system busy"."""

WAITING_PULLS_BYTES_MAX: Final = 256 * 1024 * 1024
"""Requests and filters of these pulls: a request may have 16 MiB."""

PULL_FILTERS_CHARS_CACHED: Final = 256 * 1024
"""Filters that pulls contain and a broker caches; a full cache is cleared."""

SELECTOR_TESTS_CHARS: Final = 640_000
"""Characters of SQL92 selectors with which one pull, or the arrival of messages, is tested in one
turn: one of 40 characters with 16,000 messages, which takes a tenth of a second. A long one takes
milliseconds for each message."""

SELECTOR_TESTS_MIN: Final = 16
"""Messages that a pull tests at least."""

TURN_MS: Final = 50
"""Time of one turn of the event loop in which requests of one connection are begun."""

WAITING_PULLS_PER_TURN: Final = 256
"""Waiting pulls answered in one turn of the event loop: one message may wake all of them."""

REQUESTS_PER_TURN: Final = 512
"""Requests of RocketMQ served in one turn of the event loop, shared by the connections that have
more: one socket read of each of 50 connections can bring 1,000."""

REQUESTS_PER_TURN_MIN: Final = 8
"""Smallest share of one connection."""

ANSWER_BYTES_PER_TURN: Final = 4 * 1024 * 1024
"""Bytes of answers per turn, shared in the same way; then the write buffer is measured."""

KEYS_PER_MESSAGE_MAX: Final = 1_000
"""Keys of a message of RocketMQ: 128 sends that are stored at once have to be put into the index in
one turn of the event loop. 16,000 would fit into the properties."""

BATCH_ENTRIES_MAX: Final = 100_000
"""Messages of a batch and their keys, for the same reason. Java's broker allows up to 4 MiB of
records, which is fewer."""

SENDS_PER_APPEND: Final = 128
"""Sends that are stored at once; fewer wait for others until the end of the loop's turn."""

SCANS_PER_GET: Final = 8
"""Reads without a match after which a get with filters is answered, so that others have a turn."""

MESSAGES_PER_GET: Final = 16_384
"""Messages of one get: small ones cost time rather than bytes."""

RECORD_BYTES_PER_GET: Final = 4 * 1024 * 1024
"""The most bytes of stored records in one answer, whatever the client asks for."""

DECOMPRESSED_BYTES_PER_GET: Final = 1024 * 1024
"""Bodies that a TubeMQ broker decompresses for one get, in addition to the first: it takes time of
the event loop, and a consumer does not read frames above `FRAME_BYTES_MAX`."""

DECOMPRESSED_BYTES_PER_ANSWER: Final = 256 * 1024 * 1024
"""The most bytes that the administration decompresses for one answer: a body of 16 MiB could become
16 GiB. Consumers and readers of RocketMQ pull the messages behind it again."""

FILTER_NEAR_END: Final = 100_000
"""A consumer with filters is near the end of its partition if this few messages are left."""

# -- caches of a broker

ATTRIBUTES_CACHED: Final = 4096
"""Attribute texts whose translation a broker caches; a full cache is cleared."""

ATTRIBUTE_BYTES_CACHED: Final = 512
"""Longer texts are not cached: the cache stays below 16 MiB."""

FRAMES_CACHED: Final = 16
"""Body lengths per attribute text for which a broker caches the bytes around the body."""

SEND_PERMISSIONS_CACHED: Final = 32_768
"""Pairs of client and topic whose permissions a broker caches, about 1 KiB each: even sends to
10,000 topics are checked with two comparisons."""

SEND_TAILS_CACHED: Final = 8192
"""Ends of send requests that a broker caches."""

SEND_TAIL_BYTES_CACHED: Final = 256
"""Longer ends of send requests are not cached."""

# -- store

QUEUE_ENTRIES_WAITING: Final = 1_000_000
"""Entries of consume queues, 20 bytes each, in memory before they are written. Writing begins at
half of them, or earlier if few queues share them. After a crash, the next start examines as many
records."""

# -- HTTP administration

ADMIN_REQUEST_BYTES_MAX: Final = 1024 * 1024
"""Address or form of a request: 10,000 offsets fit."""

ADMIN_FIELDS_MAX: Final = 1_000
"""Parameters of a request; no method has more than a few dozen."""

ADMIN_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest answer that a client reads: 100,000 partitions and more."""

# -- consumers

RETRY_REASON_CHARS_MAX: Final = 2_000
"""The most characters of the reason for a retry: even in UTF-8 they leave most of the space for
properties to the application."""

# -- producers

WINDOW_BYTES_DEFAULT: Final = 64 * 1024 * 1024
"""Bytes of a producer's unanswered messages, all of which are in its memory."""
