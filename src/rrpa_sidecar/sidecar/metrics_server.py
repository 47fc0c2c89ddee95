"""The metrics page: plain HTTP in threads of its own, one port, every address of its host."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from http.server import ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, MetricsHandler, ProcessCollector

from rrpa_sidecar.metrics import Metrics

log = logging.getLogger(__name__)

PEER_TIMEOUT_S = 10.0
BACKLOG = 128
"""Connections that may wait for the thread. Above it the kernel drops a SYN, and whoever sent it
tries again after a second (seen with 16 and a burst of 20)."""
PEER_LIMIT = 32
"""Peers of one address at once. One more cuts off the one that is there longest, so that no peer,
however slow, keeps a scrape out, or takes the threads and descriptors that streams need."""
SELECT_TIMEOUT_S = 3600.0


class MetricsServer:
    """Serves `metrics` on `sockets` from `start` to `close`."""

    def __init__(self, metrics: Metrics, sockets: list[socket.socket]) -> None:
        # A registry of our own: the default one holds Python's gc counters, which say nothing
        # to an operator. ProcessCollector gives the start time, so that a restart shows.
        registry = CollectorRegistry()
        registry.register(metrics)
        ProcessCollector(registry=registry)
        handler = type("Handler", (_Handler,), {"registry": registry})
        self._servers = [_Server(each, handler) for each in sockets]

    def start(self) -> None:
        """Listen and serve."""
        for server in self._servers:
            threading.Thread(target=server.serve, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Stop serving; answers under way are cut. Idempotent."""
        while self._servers:
            self._servers.pop().stop()


class _Handler(MetricsHandler):
    timeout = PEER_TIMEOUT_S  # a peer that connects and says nothing does not keep a thread

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a scrape is no event."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, bound: socket.socket, handler: type[_Handler]) -> None:
        # Not TCPServer.__init__'s way: the socket exists, and looking up a name for it may wait.
        super().__init__(bound.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self._peers: dict[socket.socket, None] = {}  # oldest first
        self._lock = threading.Lock()
        bound.listen(BACKLOG)

    def serve(self) -> None:
        """Serve until `stop`. Between connections the thread sleeps: it has no timer."""
        self.serve_forever(poll_interval=SELECT_TIMEOUT_S)

    def stop(self) -> None:
        """Stop listening; returns at once."""
        self.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which then sees the next line
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve one more peer, in a thread of its own."""
        with self._lock:
            if len(self._peers) >= PEER_LIMIT:
                self._cut_off(next(iter(self._peers)))
            self._peers[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Let a peer go: its thread's last act."""
        with self._lock:
            self._peers.pop(request, None)
        super().shutdown_request(request)

    def _cut_off(self, peer: socket.socket) -> None:
        del self._peers[peer]
        with contextlib.suppress(OSError):  # it went by itself
            peer.shutdown(socket.SHUT_RDWR)  # its thread reads the end, or fails to write

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("metrics peer %s broke off", client_address, exc_info=True)
