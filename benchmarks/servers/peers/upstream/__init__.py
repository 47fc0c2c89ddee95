"""The engine behind the gateways: OpenAI-compatible server-sent events, paced, and cheap.

A process of its own (`python -m benchmarks.servers.peers.upstream --help`), so that its CPU is
reported apart from the gateway's. One timer gives every open stream its token, as an engine
that batches does; a gateway therefore finds all its sockets readable at once, which is the
cheapest way for it.
"""
