"""The stored message: RocketMQ 4.9's record, its properties, ids and compression.

* `layout`: the bytes of a record.
* `properties`: the property text, tag codes, index keys and message times.
* `ids`: offset ids and unique ids.
* `compression`: zlib bodies.
* `records`, `scan`, `runs`: records found in a buffer: one by one, by numpy, and verified.
* `record_columns`, `columns`: records, and their property texts, as Arrow columns.
* `batches`, `packing`: several messages in one request, and such batches from Arrow columns.
* `system_topics`: topics and groups that RocketMQ reserves, and delay levels.
* `bad_record`, `offset_ranges`: what a reader does not get.
"""
