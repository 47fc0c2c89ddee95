"""A sidecar that breaks calls off: python rude_upstream.py SOCKET. Raw HTTP/2, by hand.

The request holds a word that says when: rude-refuses, rude-before-headers, rude-after-headers,
rude-after-frames. Every such request is counted in SOCKET.count. Health checks are answered.
"""

from __future__ import annotations

import pathlib
import re
import socketserver
import struct
import sys

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING = 0, 1, 3, 4, 6
END_STREAM, END_HEADERS, ACK = 1, 4, 1
INTERNAL_ERROR, REFUSED_STREAM = 2, 7
# HPACK: ":status 200" from the static table, "content-type: application/grpc" as a literal.
GRPC_OK = b"\x88\x0f\x10\x10application/grpc"
TRAILERS_OK = b"\x00\x0bgrpc-status\x010"
SERVING = b"\0\0\0\0\x02\x08\x01"
TOKEN = b"\0\0\0\0\x07\x12\x05token"


class Connection(socketserver.StreamRequestHandler):
    """One connection from Envoy."""

    def handle(self) -> None:
        self.rfile.read(len(PREFACE))
        self.send(SETTINGS, 0, 0, b"")
        bodies: dict[int, bytes] = {}
        while head := self.rfile.read(9):
            length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            (stream,) = struct.unpack(">I", head[5:])
            payload = self.rfile.read(length)
            if kind in (SETTINGS, PING) and not flags & ACK:
                self.send(kind, ACK, 0, payload if kind == PING else b"")
            if kind == DATA:
                bodies[stream] = bodies.get(stream, b"") + payload
            if kind in (DATA, HEADERS) and flags & END_STREAM:
                self.answer(stream, bodies.pop(stream, b""))

    def answer(self, stream: int, body: bytes) -> None:
        found = re.search(rb"rude-[a-z-]+", body)
        word = found[0].decode() if found else ""
        if not word:
            self.send(HEADERS, END_HEADERS, stream, GRPC_OK)
            self.send(DATA, 0, stream, SERVING)
            self.send(HEADERS, END_HEADERS | END_STREAM, stream, TRAILERS_OK)
            return
        with pathlib.Path(f"{sys.argv[1]}.count").open("a") as count:
            count.write("x")
        if word in ("rude-after-headers", "rude-after-frames"):
            self.send(HEADERS, END_HEADERS, stream, GRPC_OK)
        if word == "rude-after-frames":
            for _ in range(3):
                self.send(DATA, 0, stream, TOKEN)
        reason = REFUSED_STREAM if word == "rude-refuses" else INTERNAL_ERROR
        self.send(RST_STREAM, 0, stream, struct.pack(">I", reason))

    def send(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + struct.pack(">I", stream)
        self.wfile.write(head + payload)


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


if __name__ == "__main__":
    with Server(sys.argv[1], Connection) as server:
        print("ready", flush=True)
        server.serve_forever()
