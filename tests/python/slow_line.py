# SPDX-License-Identifier: Apache-2.0
"""A line that passes few bytes a second each way, and that can be cut."""

import contextlib
import socket
import threading
import time

PIECES_PER_S = 10


class SlowLine:
    """Listens on `port` of this machine, and passes on to another port of it what comes."""

    def __init__(self, target, bytes_per_s):
        self.target, self.bytes_per_s = target, bytes_per_s
        self.passed = {"up": 0, "down": 0}
        self.connections = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self._start(self._accept)

    def cut(self):
        """Breaks all connections; new ones are accepted."""
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.cut()
        for connection in self.connections:
            connection.close()

    def _start(self, function, *arguments):
        threading.Thread(target=function, args=arguments, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near = self.listener.accept()[0]
                far = socket.create_connection(("127.0.0.1", self.target))
                for end in near, far:  # Else the system takes megabytes at once.
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
                self.connections += near, far
                self._start(self._pass_on, near, far, "up")
                self._start(self._pass_on, far, near, "down")

    def _pass_on(self, source, sink, way):
        due = time.monotonic()
        with contextlib.suppress(OSError):
            while piece := source.recv(self.bytes_per_s // PIECES_PER_S):
                sink.sendall(piece)
                self.passed[way] += len(piece)
                due = max(due, time.monotonic() - 1 / PIECES_PER_S) + len(piece) / self.bytes_per_s
                time.sleep(max(0.0, due - time.monotonic()))
        for end in source, sink:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
