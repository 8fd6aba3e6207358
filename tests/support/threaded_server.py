"""What the scripted servers share: a thread that accepts, one for each connection, and an end that waits for no client."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable


class ThreadedServer:
    """``serve`` gets each connection in a thread of its own and closes it; what it puts into ``open`` is cut off at the end.
    ``accepted``: how many connections were made."""

    def __init__(self, listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        self.accepted = 0
        self.open: set[socket.socket] = set()
        self._listener = listener
        self._serve = serve
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def start(self) -> None:
        self._threads[0].start()

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in tuple(self.open):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)  # of TLS, too: its own method would first talk to the client
        for thread in tuple(self._threads):
            thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()
