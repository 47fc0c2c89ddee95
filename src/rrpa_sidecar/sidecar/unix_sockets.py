"""Unix-socket paths of our own: claimed, opened to the group, removed.

gRPC removes whatever socket is at a path before it binds there, so a second daemon would steal
the first one's path in silence. A claim comes first: a lock file beside the socket for the
daemon's life, then a dial that must be refused.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Callable, Iterator

from rrpa_sidecar.errors import StartupError
from rrpa_sidecar.sidecar.addresses import AddressTaken, process_name

MODE = 0o660
LOCK_SUFFIX = ".lock"


class Claim:
    """The right to bind one path, from the constructor to `release`."""

    def __init__(self, path: str, flag: str) -> None:
        """Claim `path`; a socket that nobody answers on is removed.

        flag: the setting's flag, for the error text.

        Raises:
          AddressTaken: somebody has the path.
          StartupError: it is no socket, or its directory is no good.
        """
        self.path = path
        self._inode: tuple[int, int] | None = None
        try:
            self._lock = _lock(path + LOCK_SUFFIX)
        except BlockingIOError:
            raise _taken(path, flag, lambda: _listener(path)) from None
        except OSError as error:
            raise StartupError(
                f"{flag}: cannot use {path}: {os.strerror(error.errno or 0)}; the directory must"
                " exist and be writable"
            ) from error
        try:
            _remove_stale(path, flag)
        except StartupError:
            self.release()
            raise

    @contextlib.contextmanager
    def binding(self) -> Iterator[None]:
        """Bind the path inside this block: it is 0660 from its first moment, whatever the umask."""
        before = os.umask(0o777 & ~MODE)
        try:
            yield
        finally:
            os.umask(before)
        os.chmod(self.path, MODE)
        self._inode = _inode(self.path)

    def release(self) -> None:
        """Remove the socket, if it is still ours, and give up the claim. Idempotent."""
        if self._lock < 0:
            return
        if self._inode is not None and _inode(self.path) == self._inode:
            os.unlink(self.path)
        # Unlinked while locked: whoever opened it before sees that it is gone and opens anew.
        with contextlib.suppress(OSError):
            os.unlink(self.path + LOCK_SUFFIX)
        os.close(self._lock)
        self._lock = -1


def _lock(path: str) -> int:
    """Return a descriptor that holds the exclusive lock on the file now at `path`."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.fstat(fd)
            if _inode(path) == (found.st_dev, found.st_ino):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _remove_stale(path: str, flag: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartupError(
            f"{flag}: {path} exists and is not a socket; it was left alone: move it away or"
            " choose another path"
        )
    try:
        holder = _dial(path)
    except ConnectionRefusedError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    except OSError as error:
        holder = f"a process that does not answer ({os.strerror(error.errno or 0)})"
    raise _taken(path, flag, lambda: holder)


def _taken(path: str, flag: str, holder: Callable[[], str]) -> AddressTaken:
    return AddressTaken(
        lambda: f"{flag}: {path} is taken by {holder()}; stop it or choose another path"
    )


def _listener(path: str) -> str:
    try:
        return _dial(path)
    except OSError:
        return "another sidecar that is starting or stopping"


def _dial(path: str) -> str:
    """Return the name of the process that listens at `path`.

    Raises:
      ConnectionRefusedError: nobody does.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as dialled:
        try:
            dialled.connect(path)
        except OSError as error:
            # A datagram socket, or a full backlog: somebody is there.
            if error.errno in (errno.EPROTOTYPE, errno.EAGAIN):
                return "a process that this user cannot see"
            raise
        raw = dialled.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid = struct.unpack("3i", raw)[0]
    return process_name(pid) if pid else "a process of another container"


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
