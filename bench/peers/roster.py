# SPDX-License-Identifier: AGPL-3.0-only
"""Who takes part, in the order of the tables."""

from bench.peers.beanstalkd import Beanstalkd
from bench.peers.fila_broker import Fila
from bench.peers.jetstream import JetStream, SyncedJetStream
from bench.peers.peer import Peer
from bench.peers.rabbitmq import RabbitMQ
from bench.peers.redis_streams import Redis

_ALL: tuple[Peer, ...] = (
    Fila(),
    Redis(),
    RabbitMQ(),
    JetStream(),
    SyncedJetStream(),
    Beanstalkd(),
)
PEERS: dict[str, Peer] = {peer.name: peer for peer in _ALL}
