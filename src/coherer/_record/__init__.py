"""The stored message: RocketMQ 4.9's record, its properties, ids and compression.

* `layout`: the bytes of a record.
* `properties`: the property text, tag codes, index keys and message times.
* `ids`: offset ids and unique ids.
* `compression`: zlib bodies.
* `columns`: property texts as Arrow columns.
* `system_topics`: topics and groups that RocketMQ reserves, and delay levels.
* `offset_ranges`: ranges of missing offsets.
"""
