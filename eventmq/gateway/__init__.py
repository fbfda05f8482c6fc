"""Kit of gateway authors: client, worker, consumer and port for servers of other protocols.

Names load when first used, so that importing this package imports neither zmq nor asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.lazy import load_names

if TYPE_CHECKING:
    from eventmq.gateway.access import (
        CLIENTS,
        WITH_KEYS,
        WORKERS,
        GatewayAuthenticator,
        check_reach,
        gateway_options,
        make_authenticator,
        split_address,
    )
    from eventmq.gateway.client import (
        InProcessClient,
        LoopThread,
        call_task,
        close_server,
        extra_headers,
        kept_elsewhere,
    )
    from eventmq.gateway.consumer import Consumer, Delivery
    from eventmq.gateway.router import FrameMachine, LoopMember, RouterLoop, Watchable
    from eventmq.gateway.worker import PeerWorker

__all__ = [
    "CLIENTS",
    "WITH_KEYS",
    "WORKERS",
    "Consumer",
    "Delivery",
    "FrameMachine",
    "GatewayAuthenticator",
    "InProcessClient",
    "LoopMember",
    "LoopThread",
    "PeerWorker",
    "RouterLoop",
    "Watchable",
    "call_task",
    "check_reach",
    "close_server",
    "extra_headers",
    "gateway_options",
    "kept_elsewhere",
    "make_authenticator",
    "split_address",
]

__getattr__ = load_names(__name__, {
    "CLIENTS": ".access", "WITH_KEYS": ".access", "WORKERS": ".access",
    "GatewayAuthenticator": ".access", "make_authenticator": ".access",
    "check_reach": ".access", "gateway_options": ".access", "split_address": ".access",
    "InProcessClient": ".client", "LoopThread": ".client", "close_server": ".client",
    "call_task": ".client", "extra_headers": ".client", "kept_elsewhere": ".client",
    "Consumer": ".consumer", "Delivery": ".consumer",
    "FrameMachine": ".router", "LoopMember": ".router", "RouterLoop": ".router",
    "Watchable": ".router",
    "PeerWorker": ".worker",
})  # fmt: skip
