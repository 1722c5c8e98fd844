"""Sends a message that no reader can decode."""

from __future__ import annotations

import socket
import time

from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.command import Command, encode


def send_bad(port: int, topic: str, body: bytes) -> None:
    """A message whose flag says that it is compressed, as no client of ours sends it."""
    fields = {
        "producerGroup": "raw",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "1",
        "queueId": "0",
        "sysFlag": "1",
        "bornTimestamp": str(time.time_ns() // 1_000_000),
        "flag": "0",
        "properties": "",
    }
    with socket.create_connection(("127.0.0.1", port), timeout=10) as link:
        link.sendall(encode(Command(RequestCode.SEND_MESSAGE, fields=fields, body=body)))
        size = int.from_bytes(link.recv(4, socket.MSG_WAITALL), "big")
        assert b'"code":0' in link.recv(size, socket.MSG_WAITALL)
