"""Check that a service has written every message to its table, and let it read the gaps again.

`audit` and `replay` are tasks as a scheduler such as Airflow or Dagster runs them. The exit codes
of the commands decide what runs next: 0 goes on, 3 means that the table is incomplete, and with any
other code the scheduler tries the task again, or alerts somebody.
"""

import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import coherer
import coherer.blocking

URL = sys.argv[1] if len(sys.argv) > 1 else "rocketmq://127.0.0.1:9876"
TOPIC = "payments"
GROUP = "billing"
PLACE = ["broker", "partition", "offset"]
INCOMPLETE = 3


def command(*words: str) -> int:
    """Run a command of Coherer; return its exit code, or fail like a task that may be retried."""
    program = [sys.executable, "-m", "coherer", *words, "--url", URL]
    code = subprocess.run(program, check=False).returncode
    if code not in {0, INCOMPLETE}:
        sys.exit(code)
    return code


def audit(table: Path) -> bool:
    """Return whether the table has each message of the topic exactly once."""
    return command("audit", TOPIC, "--landed", str(table)) != INCOMPLETE


def replay() -> None:
    """Let the service read the topic again, from its beginning: it skips what its table has.

    A scheduler gives the time at which its hour began: `--from 2026-11-21T06:00:00Z`.
    """
    command("replay", TOPIC, "--group", GROUP, "--from", "0", "--yes")


def service(table: Path, *, forgets: int = 0) -> None:
    """Read what the group has not read, and add to the table what it lacks.

    Args:
        table: the directory of the Parquet files.
        forgets: the number of messages that a bug acknowledges without writing them.
    """
    with coherer.blocking.connect(URL) as client:
        admin = client.admin()
        with client.consumer(GROUP, TOPIC, start="earliest") as consumer:
            while any(group.lag != 0 for group in admin.groups.list(GROUP)):
                batch = consumer.receive(timeout_ms=1_000)
                if batch is None:
                    continue
                rows = pa.Table.from_batches([batch.to_arrow()]).select([*PLACE, "value"])
                if any(table.iterdir()):
                    written = pq.read_table(table, columns=PLACE)
                    rows = rows.join(written, PLACE, join_type="left anti")
                pq.write_table(rows.slice(forgets), table / f"{uuid.uuid4()}.parquet")
                forgets = 0
                batch.ack()
                consumer.commit()


with coherer.blocking.connect(URL) as client, client.producer(TOPIC) as producer:
    producer.send_many(coherer.Message(TOPIC, b"payment %d" % n) for n in range(1_000)).check()

with tempfile.TemporaryDirectory() as directory:
    table = Path(directory)
    service(table, forgets=10)
    if not audit(table):
        print("the table is incomplete")
        replay()
        service(table)
        print("the table is complete:", audit(table))
