"""Nodes over sockets, and requests of TubeMQ's clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coherer import _net as net
from coherer._server.node.node import Node, NodeOptions
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from tests.server.raw_client import RawClient

WHO: dict[str, Any] = {"clientId": "c", "groupName": "g", "topicName": "demo", "partitionId": 1}


def options(directory: Path, **given: Any) -> NodeOptions:
    usual: dict[str, Any] = {
        "directory": directory,
        "master_port": 0,
        "broker_port": 0,
        "admin_port": None,
        "namesrv_port": 0,
        "rocketmq_port": 0,
        "segment_bytes": 1 << 24,
    }
    return NodeOptions(**{**usual, **given})


def message(data: bytes = b"hello", **fields: Any) -> pb.SendMessageRequestP2B:
    usual: dict[str, Any] = {
        "clientId": "p",
        "topicName": "demo",
        "partitionId": 1,
        "data": data,
        "flag": 0,
        "checkSum": -1,
        "sentAddr": 0x7F000001,
    }
    return pb.SendMessageRequestP2B(**{**usual, **fields})


async def to_broker(node: Node) -> RawClient:
    return await net.dial("127.0.0.1", node.broker_port, RawClient)


async def to_master(node: Node) -> RawClient:
    return await net.dial("127.0.0.1", node.master_port, RawClient)


async def register(asker: RawClient, **fields: Any) -> pb.RegisterResponseB2C:
    request = pb.RegisterRequestC2B(**{**WHO, "opType": 31, "readStatus": 0, **fields})
    answer = await asker.ask(methods.PARTITION_REGISTER, request)
    assert isinstance(answer, pb.RegisterResponseB2C)
    return answer


async def get(asker: RawClient, **fields: Any) -> pb.GetMessageResponseB2C:
    request = pb.GetMessageRequestC2B(**{**WHO, "lastPackConsumed": True, **fields})
    answer = await asker.ask(methods.GET_MESSAGES, request)
    assert isinstance(answer, pb.GetMessageResponseB2C)
    return answer


def producer(*topics: str) -> pb.RegisterRequestP2M:
    return pb.RegisterRequestP2M(
        clientId="p", topicList=topics, brokerCheckSum=-1, hostName="127.0.0.1"
    )


async def topic_infos(asker: RawClient, *topics: str) -> list[str]:
    beat = pb.HeartRequestP2M(
        clientId="p", topicList=topics, brokerCheckSum=-1, hostName="127.0.0.1"
    )
    answer = await asker.ask(methods.PRODUCER_HEARTBEAT, beat)
    assert answer.success, answer
    return sorted(answer.topicInfos)
