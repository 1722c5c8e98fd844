"""What a TubeMQ cluster says about itself to somebody who is about to administer it.

A producer without topics registers and leaves. The answer names the cluster's brokers; that of our
master says, beside that, where its HTTP administration is and which master it is. Java's masters
say neither, and Java's producers pass over both.
"""

from __future__ import annotations

import logging

import msgspec

from coherer._client.tubemq.cluster import UNDEFINED, Cluster, client_id
from coherer._client.tubemq.master import checked
from coherer._common.logs import Log
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.names import BrokerInfo
from coherer.errors import CohererError

_log = Log(logging.getLogger(__name__))


class Introduction(msgspec.Struct, frozen=True):
    """A cluster's word about itself.

    Args:
        server: the active master, as `host:port`.
        host: its address, as we reached it. Not its name, which an administration may not know
            as one of its own.
        hosts: the host of the active master first, as it was given, then those of the others.
        master_id: the random name of this run of the master; "" from Java's.
        web_port: where its HTTP administration is; 0 from Java's, or where there is none.
        brokers: number, host and port of each broker.
    """

    server: str
    host: str
    hosts: tuple[str, ...]
    master_id: str
    web_port: int
    brokers: frozenset[tuple[int, str, int]]


async def introduce(cluster: Cluster) -> Introduction:
    """Ask the active master.

    Raises:
        RefusedError: it asks for an account, and none or a wrong one is given.
        UnavailableError: no master can be reached.
    """
    host = await cluster.local_host()
    name, credentials, masters = client_id(host), cluster.credentials(), cluster.masters
    request = pb.RegisterRequestP2M(
        clientId=name,
        brokerCheckSum=-1,
        hostName=host,
        authInfo=credentials.for_master(),
        appdConfig=pb.ApprovedClientConfig(configId=UNDEFINED),
    )
    answer = await masters.ask(methods.PRODUCER_REGISTER, request, pb.RegisterResponseM2P)
    server = masters.server
    checked(answer, server=server)
    try:
        credentials.renew(answer.authorizedInfo)
        close = pb.CloseRequestP2M(clientId=name, authInfo=credentials.for_master())
        await masters.ask(methods.PRODUCER_CLOSE, close, pb.CloseResponseM2P)
    except CohererError as error:
        _log.info("The master did not take the end of %s: %s", name, error)
    first = server.rpartition(":")[0]
    peer = (await masters.link()).connection.peer_host
    brokers = (BrokerInfo.parse(text, tls=cluster.secure) for text in answer.brokerInfos)
    return Introduction(
        server=server,
        host=peer or first,
        hosts=tuple(dict.fromkeys([first, *(host for host, _ in masters.addresses)])),
        master_id=answer.masterId,
        web_port=answer.webPort,
        brokers=frozenset((broker.id, broker.host, broker.port) for broker in brokers),
    )
