"""Others that do the same job for a client, each in its best normal shape."""

from __future__ import annotations

from benchmarks.servers import Server
from benchmarks.servers.peers import fastapi, litellm, smg, vllm_router
from benchmarks.servers.peers.cpp import CppGrpc
from benchmarks.servers.peers.grpcaio import GrpcAio

PEERS: tuple[Server, ...] = (
    GrpcAio(),
    CppGrpc(),
    fastapi.SERVER,
    smg.SERVER,
    vllm_router.SERVER,
    litellm.SERVER,
)
"""A peer is one line here; `paced` measures all of them."""
