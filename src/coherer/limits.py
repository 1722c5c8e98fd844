"""Every hard limit, with its reason. Units stand last in the names.

Limits that a user sets are options with these as their defaults or ceilings.
"""

from __future__ import annotations

from typing import Final

BLOCK_BYTES: Final = 8192
"""Size of every block but the last in a TubeMQ frame (Java's ByteBufferOutputStream)."""

FRAME_BLOCKS_MAX: Final = 3584
"""Blocks in a TubeMQ frame: (20 MiB message + 8 MiB slack) / 8192, checked by Java's decoder."""

FRAME_BYTES_MAX: Final = FRAME_BLOCKS_MAX * BLOCK_BYTES
"""Payload of a TubeMQ frame. Java has no such check; without one a peer could fill our memory."""

MESSAGE_BYTES_DEFAULT: Final = 1024 * 1024
"""What a TubeMQ producer may send until the master names another limit."""

MESSAGE_BYTES_MAX: Final = 20 * 1024 * 1024
"""The highest limit that a TubeMQ master may name."""

MESSAGE_SLACK_BYTES: Final = 10240
"""What a broker accepts beyond the limit, for attributes."""

TOPIC_CHARS_MAX: Final = 64
"""Length of a TubeMQ topic name, checked by Java's master and broker."""

GROUP_CHARS_MAX: Final = 1024
CLIENT_ID_CHARS_MAX: Final = 1024
HOST_CHARS_MAX: Final = 256
FILTER_CHARS_MAX: Final = 256
FILTERS_MAX: Final = 500
TOPICS_PER_CLIENT_MAX: Final = 1024
"""These five are checked by Java's servers; a client that breaks them is refused with 400."""

TOPIC_PARTITIONS_MAX: Final = 10_000
"""Partitions of a topic in one store: a partition's id is store * 10000 + partition."""

TOPIC_STORES_MAX: Final = 1_000
"""Stores of a topic on one broker. Java has no limit; the id of a partition has 31 bits."""

UNSIGNED_MAX: Final = 1_000
UNSIGNED_BYTES_MAX: Final = 64 * 1024
"""Registrations, and the size of each, that a master with authentication remembers until the
consumer has signed: Java's consumers cannot sign before their second heartbeat."""

TOPICS_MAX: Final = 10_000
"""Topics of a cluster up to which clients create more by naming them. Administrators may go on."""

CLIENTS_MAX: Final = 100_000
"""Producers, and as many consumers, that a master keeps: a kilobyte or so each."""

TIMER_DELAY_MS_MAX: Final = 3 * 24 * 3_600_000
"""How far away the time of a timed message may be (5.x: `timerMaxDelaySec`)."""

TIMER_SLOT_MESSAGES_MAX: Final = 1_000_000
"""Timed messages that are due in the same five minutes: 50 bytes of memory each when their time
comes. Further ones are refused."""

PROPERTIES_BYTES_MAX: Final = 32767
"""Property text of a stored record: its length is a signed 16-bit number (RocketMQ 4.9)."""

TOPIC_BYTES_MAX: Final = 127
"""Topic of a stored record: its length is a signed byte (RocketMQ 4.9)."""

QUEUE_ENTRIES_WAITING: Final = 1_000_000
"""Entries of consume queues, of 20 bytes each, that are in memory before they are written: after
half of them the store begins. A crash leaves so many records for the next start to look at."""

ADMIN_REQUEST_BYTES_MAX: Final = 1024 * 1024
"""A request to the HTTP administration: address, or form. 10,000 offsets fit."""

ADMIN_FIELDS_MAX: Final = 1_000
"""Parameters of a request to the HTTP administration; no method has more than some dozens."""

ADMIN_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""What a client of the HTTP administration reads of one answer: 100,000 partitions and more."""

ATTRIBUTE_BLOCKS_CACHED: Final = 4096
"""Attribute blocks whose translation a broker remembers; beyond, it starts anew."""

ATTRIBUTE_BYTES_CACHED: Final = 512
"""Longer ones are not remembered: all together stay below 16 MiB."""

FRAMES_CACHED: Final = 16
"""Body lengths for which a broker remembers what to put around bodies with such a block."""

LANES_CACHED: Final = 32_768
"""Pairs of client and topic whose rights a broker remembers, about 1 KiB each: sends that are
spread over 10,000 topics are still read with two comparisons."""

TAILS_CACHED: Final = 8192
"""Ends of send requests that a broker remembers."""

TAIL_BYTES_CACHED: Final = 256
"""Longer ends of send requests are not remembered."""

LEASES_MAX: Final = 65_536
"""Partitions that may be read at one broker at a time: each takes about 1 KiB."""

SCANS_PER_GET: Final = 8
"""Reads without a match after which a get with filters is answered, so that others have a turn."""

MESSAGES_PER_GET: Final = 16_384
"""Messages that one get delivers at most: small ones cost time rather than bytes."""

INFLATED_PER_GET_BYTES: Final = 1024 * 1024
"""Bodies that a TubeMQ broker inflates for one get, beyond the first: inflating takes the event
loop's time, and a consumer reads no frame above `FRAME_BYTES_MAX`."""

FILTER_NEAR_END: Final = 100_000
"""A consumer with filters is near the end of its partition when so few messages are left."""

WINDOW_BYTES_DEFAULT: Final = 64 * 1024 * 1024
"""What a producer has under way at a time, however few messages that are: it is in memory here."""

APPEND_AT_ONCE: Final = 128
"""So many sends are stored together at once; fewer wait for others until the loop's turn ends."""

REMOTING_BYTES_MAX: Final = 16 * 1024 * 1024
"""A frame of RocketMQ's remoting, its length included (Java's `frameMaxLength`)."""

REQUESTS_AT_ONCE: Final = 512
"""So many requests of RocketMQ are served in a turn of the loop, shared by the connections that
have more: a socket read of each of 50 can bring 1,000, and others wait meanwhile."""

REQUESTS_AT_ONCE_MIN: Final = 8
"""But so many of each."""

ANSWERED_AT_ONCE_BYTES: Final = 4 * 1024 * 1024
"""The same for answers: then others have their turn, and the outbox is measured."""

HELD_PULLS_MAX: Final = 100_000
"""Pulls that wait for a message at one broker, about 2 KiB each: so many requests wait in Java's
queue for its threads. Further ones are told that the system is busy."""

HELD_PULLS_AT_ONCE: Final = 256
"""So many are answered before others have their turn: one message can wake all of them."""

REMOTING_HEADER_BYTES_MAX: Final = 1024 * 1024
"""The header of a RocketMQ command: the largest there is holds 32 KiB of properties, and each of
their signs may take six bytes."""

SETTINGS_BYTES_MAX: Final = 256 * 1024
"""Settings that a RocketMQ server takes at once; all that Java has are 10 KiB."""

JSON_VALUES_MAX: Final = 80_000
"""Values of a JSON body that has to be read step by step, because it is not strict or not what was
expected: so many take a third of a second. 10,000 queues with their offsets fit."""

JSON_OBJECTS_MAX: Final = 200_000
"""Objects and lists of any JSON body: a broker with 100,000 topics registers with fewer."""

HEARTBEAT_OBJECTS_MAX: Final = 10_000
"""Consumers, subscriptions and producers of one heartbeat, or queues of a request for locks: a
broker books each of them between other requests."""

JSON_DEPTH_MAX: Final = 64
"""Objects and lists within each other in a JSON body: RocketMQ's own are 8 deep at most."""

SELECTOR_CHARS_MAX: Final = 64 * 1024
"""Length of an SQL92 selector."""

SELECTOR_TOKENS_MAX: Final = 10_000
"""Words and signs of an SQL92 selector: a broker compiles it between other requests, and so many
take a fifth of a second."""

SELECTORS_PER_HEARTBEAT_CHARS: Final = 32 * 1024
"""Length of the SQL92 selectors of one heartbeat, where it has several, for the same reason."""

SELECTOR_DEPTH_MAX: Final = 200
"""Nesting of an SQL92 selector: each level is a call when a message is tested (Java's stack ends
at some thousands)."""
