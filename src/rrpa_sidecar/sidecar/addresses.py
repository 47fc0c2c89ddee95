"""TCP addresses of our own: resolved by us, each bound on purpose, a holder named.

`localhost` may be 127.0.0.1, ::1 or both, in any order; whoever binds only the first meets
callers who dial the other. So each address it has is bound, and the ready line names them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from rrpa_sidecar.config_kinds import split_address
from rrpa_sidecar.errors import StartupError

PORT_TRIES = 20


class AddressTaken(StartupError):
    """Another process has the address; in time it may not.

    say: makes the sentence when somebody wants to read it: it takes a look at all processes.
    """

    def __init__(self, say: Callable[[], str]) -> None:
        super().__init__()
        self._say = say

    def __str__(self) -> str:
        return self._say()


@dataclass(frozen=True, slots=True)
class Address:
    """One IP address and port."""

    family: socket.AddressFamily
    ip: str
    port: int

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


def bind(text: str, flag: str) -> list[socket.socket]:
    """Return bound sockets, not yet listening, on every address that `text` (`host:port`) names.

    flag: the setting's flag, for the error text. Port 0: one free port, the same on all.
    A library that binds by itself can listen on the same address while one of these is open,
    since both set SO_REUSEADDR; nobody else gets the port by chance meanwhile.

    Raises:
      StartupError: an address cannot be bound; it says why.
      AddressTaken: somebody has it; it says who.
    """
    addresses = resolve(text, flag)
    for _ in range(PORT_TRIES):
        bound = _bind_all(addresses, flag)
        if bound is not None:
            return bound
    raise StartupError(f"{flag}: found no port that is free on all addresses of {text}")


def resolve(text: str, flag: str) -> list[Address]:
    """Return all addresses of `host:port`, IPv4 first, those that this machine lacks left out."""
    host, port = split_address(text)
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise StartupError(
            f"{flag} {text}: {host} is no address here ({error}); use an IP address"
        ) from error
    found = {Address(family, str(where[0]), port) for family, _, _, _, where in infos}
    if host == "localhost":
        # Some /etc/hosts name only one of the two; callers may try either.
        found |= {
            Address(socket.AF_INET, "127.0.0.1", port),
            Address(socket.AF_INET6, "::1", port),
        }
    ordered = sorted(found, key=lambda each: (each.family != socket.AF_INET, each.ip))
    if len(ordered) > 1:
        ordered = [each for each in ordered if _exists(each)] or ordered
    return ordered


def _exists(address: Address) -> bool:
    """Tell whether this machine has `address` at all (IPv6 may be off)."""
    try:
        with socket.socket(address.family, socket.SOCK_STREAM) as probe:
            probe.bind((address.ip, 0))
    except OSError:
        return False
    return True


def _bind_all(addresses: list[Address], flag: str) -> list[socket.socket] | None:
    """Bind each; None if a port that the system chose for the first is taken on another."""
    with contextlib.ExitStack() as undo:
        sockets: list[socket.socket] = []
        port = addresses[0].port
        for each in addresses:
            try:
                bound = undo.enter_context(_bound(Address(each.family, each.ip, port)))
            except OSError as error:
                if error.errno == errno.EADDRINUSE and each.port == 0 and sockets:
                    return None
                raise refusal(Address(each.family, each.ip, port), flag, error) from None
            port = bound.getsockname()[1]
            sockets.append(bound)
        undo.pop_all()
        return sockets


def _bound(address: Address) -> socket.socket:
    bound = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        # Connections in TIME_WAIT do not hold the port; another listener does.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address.family == socket.AF_INET6:
            # "::" means every address, IPv4 included, as gRPC understands it.
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address.ip != "::")
        bound.bind((address.ip, address.port))
    except OSError:
        bound.close()
        raise
    return bound


def address_of(bound: socket.socket) -> Address:
    """Return where `bound` is bound."""
    ip, port = bound.getsockname()[:2]
    return Address(bound.family, ip, port)


def refusal(address: Address, flag: str, error: OSError) -> StartupError:
    """Return the error for `address` that could not be bound."""
    if error.errno == errno.EADDRINUSE:
        return taken(address, flag)
    if error.errno == errno.EACCES:
        return StartupError(
            f"{flag}: this user may not listen on {address}; choose a port above 1023 or give"
            " CAP_NET_BIND_SERVICE"
        )
    return StartupError(f"{flag}: cannot listen on {address}: {os.strerror(error.errno or 0)}")


def taken(address: Address, flag: str) -> AddressTaken:
    """Return the error for `address` that somebody else has."""
    return AddressTaken(
        lambda: f"{flag}: {address} is taken by {holder(address.port)}; stop it or use another port"
    )


def holder(port: int) -> str:
    """Return `pid 123 (program)` of the process that listens on TCP `port`, as far as we see."""
    import psutil  # loaded only to say this: it costs a tenth of our start-up

    try:
        for each in psutil.net_connections("tcp"):
            listens = each.status == psutil.CONN_LISTEN and each.laddr
            if listens and each.laddr.port == port and each.pid:  # type: ignore[union-attr]
                return process_name(each.pid)
    except (psutil.Error, OSError):
        pass
    return "a process that this user cannot see"


def process_name(pid: int) -> str:
    """Return `pid 123 (program)`."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = [os.fsdecode(word) for word in file.read().split(b"\0") if word][:4]
    except OSError:
        words = []
    program = " ".join(os.path.basename(word) if word[0] == "/" else word for word in words)
    return f"pid {pid} ({program})" if program else f"pid {pid}"
