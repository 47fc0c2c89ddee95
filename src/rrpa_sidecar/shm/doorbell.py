"""The doorbell: one datagram on a Unix socket says "something moved", never what.

A full queue means that a ring is pending already. A lost ring costs one sweep interval.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat

from rrpa_sidecar.config_kinds import UNIX_PATH_LIMIT_BYTES
from rrpa_sidecar.errors import StartupError, StreamMisuse

SOCKET_MODE = 0o660
_DRAIN_LIMIT = 1024
"""Datagrams taken per drain: more than net.unix.max_dgram_qlen lets wait anywhere sane."""


def path_fault(path: str) -> str | None:
    """Return what makes `path` impossible as a Unix socket's, or None. Looks at no file."""
    size = len(os.fsencode(path))
    if size > UNIX_PATH_LIMIT_BYTES:
        return (
            f"socket path {path[:40]}… has {size} bytes, the limit is {UNIX_PATH_LIMIT_BYTES};"
            " use a shorter directory"
        )
    if not size or "\0" in path:
        return f"socket path {path!r} is empty or holds a NUL"
    return None


class Bell:
    """The sidecar's end. Non-blocking; register `fileno()` with a loop."""

    def __init__(self, path: str) -> None:
        """Bind `path`, mode 0660. A socket that nobody answers on is replaced.

        Raises:
          StartupError: the path is too long, taken, not a socket, or cannot be bound.
        """
        if fault := path_fault(path):
            raise StartupError(fault)
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            _remove_stale(path)
            # Linux gives the socket file this mode less the umask, so it is never wider.
            os.fchmod(self._socket.fileno(), SOCKET_MODE)
            self._socket.bind(path)
            os.chmod(path, SOCKET_MODE)
            self._inode = _inode(path)
        except OSError as exc:
            self._socket.close()
            raise StartupError(f"doorbell {path} cannot be bound: {exc.strerror}") from exc
        except StartupError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def drain(self) -> bool:
        """Take all pending rings; return whether there was one. Drain, then scan."""
        rang = False
        for _ in range(_DRAIN_LIMIT):
            try:
                self._socket.recv(16)
            except BlockingIOError:
                break
            rang = True
        return rang

    def give_up_path(self) -> None:
        """Remove the socket's file, so that another may bind there. Idempotent.

        Engines that have rung before go on to ring this one: they are connected.
        """
        with contextlib.suppress(FileNotFoundError):
            if _inode(self.path) == self._inode:
                os.unlink(self.path)

    def close(self) -> None:
        """Close the socket and remove its file, if the path is still ours. Idempotent."""
        if self._socket.fileno() < 0:
            return
        self.give_up_path()
        self._socket.close()


class Ringer:
    """An engine's end. One thread, or one lock around it."""

    def __init__(self, path: str) -> None:
        """Connects at the first ring.

        Raises:
          StreamMisuse: the path is too long for a Unix socket.
        """
        if fault := path_fault(path):
            raise StreamMisuse(fault)
        self._path = path
        self._socket: socket.socket | None = None
        self._closed = False

    def ring(self) -> bool:
        """Ring; return whether a ring is now pending. Never waits, never raises."""
        for _ in range(2):  # the second time for a sidecar that came back at the same path
            try:
                self._connected().send(b"\1", socket.MSG_NOSIGNAL)
                return True
            except BlockingIOError:
                return True
            except OSError:
                self._drop()
        return False

    def close(self) -> None:
        """Close the socket; later rings return False. Idempotent."""
        self._closed = True
        self._drop()

    def _connected(self) -> socket.socket:
        if self._closed:
            raise OSError("closed")
        if self._socket is None:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            try:
                made.connect(self._path)
            except OSError:
                made.close()
                raise
            self._socket = made
        return self._socket

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _remove_stale(path: str) -> None:
    """Remove a socket file that refuses a connect. Everything else is left alone."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartupError(f"doorbell {path} exists and is not a socket; it was left alone")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        except OSError as exc:
            raise StartupError(f"doorbell {path} is taken: {exc.strerror}") from exc
    raise StartupError(f"doorbell {path} is taken: another process listens on it")


def _inode(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino
