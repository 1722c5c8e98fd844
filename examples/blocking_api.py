"""The same names without asyncio."""

import sys

import coherer
import coherer.blocking

URL = sys.argv[1] if len(sys.argv) > 1 else "tubemq://127.0.0.1:8715"

with coherer.blocking.connect(URL) as client:
    with client.producer("notes") as producer:
        report = producer.send_many(coherer.Message("notes", b"note %d" % n) for n in range(100))
        print(report)

    with client.consumer("note-readers", "notes", start="earliest") as consumer:
        count = 0
        for _message in consumer:
            count += 1
            if count == 100:
                break
        print(f"read {count}")
