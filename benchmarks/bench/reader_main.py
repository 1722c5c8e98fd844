"""Reads a topic from the beginning, again and again, until stdin ends.

It prints a line when it has begun.
"""

from __future__ import annotations

import asyncio
import os
import sys

import coherer
from coherer import _net as net


async def read(url: str, topic: str) -> None:
    """Read everything that is in the topic now, then begin again."""
    has_begun = False
    async with coherer.connect(url) as client:
        while True:
            for queue, (first, end) in (await client.offsets(topic)).items():
                async with client.reader(queue, first, end=end) as reader:
                    while await reader.read() is not None:
                        if not has_begun:
                            print("reading", flush=True)
                            has_begun = True


async def main(url: str, topic: str) -> None:
    """Read until stdin ends."""
    reading = asyncio.create_task(read(url, topic))
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    await asyncio.wait([reading, ended], return_when=asyncio.FIRST_COMPLETED)
    os._exit(1 if reading.done() else 0)


if __name__ == "__main__":
    net.run(main(*sys.argv[1:]))
