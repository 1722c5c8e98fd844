"""Our pull consumer in a process of its own, told what to do as `Driver.java` is."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.interop.peers.clients import Package, Puller
from tests.interop.peers.our_clients import our_puller, to_json

HELD: dict[str, Package] = {}
PULLERS: dict[str, Puller] = {}


async def act(request: dict[str, object]) -> object:
    """Does one thing."""
    name, action = str(request["on"]), request["do"]
    if action == "pull":
        topics = request["topics"]
        assert isinstance(topics, dict)
        PULLERS[name] = await our_puller(str(request["master"]), str(request["group"]), topics)
        return name
    puller = PULLERS[name]
    if action == "get":
        package = await puller.get(int(str(request["wait_ms"])))
        if package is None:
            return {"success": False}
        token = f"{len(HELD)}"
        HELD[token] = package
        return {**to_json(package), "context": token}
    if action == "confirm":
        offset = await puller.confirm(HELD[str(request["context"])], bool(request["consumed"]))
        return {"success": True, "offset": offset}
    if action == "partitions":
        return dict.fromkeys(await puller.partitions(), 0)
    raise ValueError(action)


def lines_until_end() -> asyncio.Queue[str]:
    """The lines of stdin. The process ends with them, whatever else it is waiting for."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        os._exit(0)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    return lines


async def main() -> None:
    """Answers one request after the other."""
    lines = lines_until_end()
    say({"event": "ready"})
    while True:
        request = json.loads(await lines.get())
        try:
            answer = {"ok": await act(request)}
        except Exception as error:  # noqa: BLE001 - the test shall hear of it
            answer = {"error": repr(error)}
        say({"call": request["call"], **answer})


def say(form: dict[str, object]) -> None:
    """One line."""
    sys.stdout.write(json.dumps(form) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
