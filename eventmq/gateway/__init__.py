"""Kit of gateway authors: what servers of other protocols need of a client, a worker and a port.

Names load when they are first used, so that importing this package imports neither zmq nor asyncio.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eventmq.gateway.access import (
        CLIENTS,
        WORKERS,
        GatewayAuthenticator,
        make_authenticator,
    )
    from eventmq.gateway.client import InProcessClient, LoopThread, close_server
    from eventmq.gateway.jobs import extra_headers, kept_elsewhere
    from eventmq.gateway.options import WITH_KEYS, check_reach, gateway_options, split_address
    from eventmq.gateway.router import FrameMachine, LoopMember, RouterLoop
    from eventmq.gateway.worker import PeerWorker
    from eventmq.wire.results import decode_frames, encode_frames, frames_task

__all__ = [
    "CLIENTS",
    "WITH_KEYS",
    "WORKERS",
    "FrameMachine",
    "GatewayAuthenticator",
    "InProcessClient",
    "LoopMember",
    "LoopThread",
    "PeerWorker",
    "RouterLoop",
    "check_reach",
    "close_server",
    "decode_frames",
    "encode_frames",
    "extra_headers",
    "frames_task",
    "gateway_options",
    "kept_elsewhere",
    "make_authenticator",
    "split_address",
]

_WHERE = {
    "CLIENTS": "gateway.access", "WORKERS": "gateway.access",
    "GatewayAuthenticator": "gateway.access", "make_authenticator": "gateway.access",
    "InProcessClient": "gateway.client", "LoopThread": "gateway.client",
    "close_server": "gateway.client",
    "extra_headers": "gateway.jobs", "kept_elsewhere": "gateway.jobs",
    "WITH_KEYS": "gateway.options", "check_reach": "gateway.options",
    "gateway_options": "gateway.options", "split_address": "gateway.options",
    "FrameMachine": "gateway.router", "LoopMember": "gateway.router",
    "RouterLoop": "gateway.router",
    "PeerWorker": "gateway.worker",
    "decode_frames": "wire.results", "encode_frames": "wire.results",
    "frames_task": "wire.results",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"eventmq.{_WHERE[name]}"), name)
