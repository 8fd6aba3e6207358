"""A disk with a write cache that a power cut empties: a file, served to QEMU by the NBD protocol on a socket.

What was written and not flushed since is in the cache. ``cut``: of each of its sectors the disk keeps the newest content, an older one
since the last flush, or none of them, by chance: a disk writes its cache back in any order. Where the kernel does not ask for a flush
after a journal's commit, or a program does not fsync, this shows it. The protocol: github.com/NetworkBlockDevice/nbd, doc/proto.md.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
from pathlib import Path

SECTOR = 512
_OPTION, _OPTION_REPLY = 0x49484156454F5054, 0x0003E889045565A9
_EXPORT_NAME, _ABORT, _GO = 1, 2, 7
_ACK, _INFO, _UNSUPPORTED = 1, 3, 0x80000001
_REQUEST, _REPLY = 0x25609513, 0x67446698
_READ, _WRITE, _DISCONNECT, _FLUSH = 0, 1, 2, 3
_HAS_FLAGS, _SEND_FLUSH = 1, 4


class VolatileDisk:
    """``image``: what is durable; ``address``: the socket. For one QEMU after the other: ``serve``, then ``cut`` or ``close``."""

    def __init__(self, image: Path, address: Path, chance: random.Random) -> None:
        self.address = address
        self.flushes = self.lost = 0
        self._chance = chance
        self._durable = os.open(image, os.O_RDWR | os.O_CLOEXEC)
        self._size = os.fstat(self._durable).st_size
        self._cache: dict[int, list[bytes]] = {}

    def serve(self) -> None:
        """Until its client is gone."""
        self.address.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.address))
        self._listener.listen(1)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def cut(self) -> None:
        """The power goes, after QEMU was killed."""
        self._join()
        kept = self._chance.choice((0.0, 0.5, 0.9))
        for sector, contents in self._cache.items():
            if self._chance.random() < kept:
                os.pwrite(self._durable, self._chance.choice(contents), sector * SECTOR)
            else:
                self.lost += 1
        self._cache.clear()

    def close(self) -> None:
        """The end of a guest that has shut down: its disk is flushed."""
        self._join()
        self._flush()
        os.close(self._durable)

    def _join(self) -> None:
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(ConnectionError, EOFError), self._listener.accept()[0] as connection:
            if self._greet(connection):
                while self._answer(connection):
                    pass

    def _greet(self, connection: socket.socket) -> bool:
        connection.sendall(b"NBDMAGIC" + struct.pack(">QH", _OPTION, 3))
        _read(connection, 4)
        while True:
            _, option, length = struct.unpack(">QII", _read(connection, 16))
            _read(connection, length)
            flags = _HAS_FLAGS | _SEND_FLUSH
            if option == _EXPORT_NAME:
                connection.sendall(struct.pack(">QH", self._size, flags))
                return True
            if option == _GO:
                export = struct.pack(">HQH", 0, self._size, flags)
                connection.sendall(struct.pack(">QIII", _OPTION_REPLY, option, _INFO, len(export)) + export)
                connection.sendall(struct.pack(">QIII", _OPTION_REPLY, option, _ACK, 0))
                return True
            connection.sendall(struct.pack(">QIII", _OPTION_REPLY, option, _ACK if option == _ABORT else _UNSUPPORTED, 0))
            if option == _ABORT:
                return False

    def _answer(self, connection: socket.socket) -> bool:
        _, _, kind, handle, offset, length = struct.unpack(">IHHQQI", _read(connection, 28))
        found = b""
        if kind == _DISCONNECT:
            return False
        if kind == _READ:
            found = self._read(offset, length)
        elif kind == _WRITE:
            data = _read(connection, length)
            for at in range(0, length, SECTOR):
                self._cache.setdefault((offset + at) // SECTOR, []).append(data[at : at + SECTOR])
        elif kind == _FLUSH:
            self._flush()
        connection.sendall(struct.pack(">IIQ", _REPLY, 0, handle) + found)
        return True

    def _read(self, offset: int, length: int) -> bytes:
        found = bytearray(os.pread(self._durable, length, offset))
        for at in range(0, length, SECTOR):
            if contents := self._cache.get((offset + at) // SECTOR):
                found[at : at + SECTOR] = contents[-1]
        return bytes(found)

    def _flush(self) -> None:
        for sector, contents in self._cache.items():
            os.pwrite(self._durable, contents[-1], sector * SECTOR)
        self._cache.clear()
        self.flushes += 1


def _read(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = connection.recv(length - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)
