# SPDX-License-Identifier: Apache-2.0
"""What stands between a client and its server: a small HTTP proxy that counts and misbehaves on
demand, and a middlebox that opens TLS connections with an authority of its own."""

import base64
import contextlib
import queue
import select
import socket
import ssl
import subprocess
import threading
import time


def listen(host="127.0.0.1", port=0):
    """A listening socket; port 0: on a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    door = socket.socket(family)
    if port:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    door.bind((host, port))
    door.listen(64)
    return door


def pump(a, b):
    """Carries bytes both ways until one end closes."""
    with contextlib.suppress(OSError):
        while True:
            ready, _, _ = select.select([a, b], [], [], 60)
            for source in ready:
                data = source.recv(1 << 16)
                if not data:
                    return
                (b if source is a else a).sendall(data)


class Door:
    """Serves each connection on a thread of its own until close()."""

    def __init__(self, host="127.0.0.1", port=0):
        self.door = listen(host, port)
        self.host, self.port = host, self.door.getsockname()[1]
        self.sockets = []
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def place(self):
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.door.accept()
                self.sockets.append(client)
                threading.Thread(target=self.guarded, args=(client,), daemon=True).start()

    def guarded(self, client):
        with contextlib.suppress(OSError), client:
            self.serve(client)

    def cut(self):
        """Ends all connections; new ones are taken."""
        for one in self.sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self.sockets.clear()

    def close(self):
        with contextlib.suppress(OSError):
            self.door.shutdown(socket.SHUT_RDWR)
        self.door.close()
        self.cut()


class Proxy(Door):
    """An HTTP proxy for CONNECT. `login`: "USER:PASSWORD" that it wants. `names`: addresses of names
    that only it knows. `answer`: what it answers in place of a tunnel."""

    def __init__(self, host="127.0.0.1", login=None, names=None, answer=None, port=0):
        self.login, self.names, self.answer = login, names or {}, answer
        self.targets = []  # The targets of all requests.
        super().__init__(host, port)

    def serve(self, client):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            data = client.recv(1)
            if not data:
                return
            head += data
        lines = head.decode("latin-1").split("\r\n")
        target = lines[0].split(" ")[1]
        self.targets.append(target)
        if self.answer is not None:
            client.sendall(self.answer)
            return
        if self.login:
            right = "Basic " + base64.b64encode(self.login.encode()).decode()
            given = [line[21:] for line in lines if line.lower().startswith("proxy-authorization: ")]
            if given != [right]:
                client.sendall(
                    b"HTTP/1.1 407 Proxy Authentication Required\r\n"
                    b'Proxy-Authenticate: Basic realm="site"\r\nContent-Length: 0\r\n\r\n'
                )
                return
        host, _, port = target.rpartition(":")
        host = host.strip("[]")
        try:
            server = socket.create_connection((self.names.get(host, host), int(port)), timeout=10)
        except OSError:
            client.sendall(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
            return
        server.settimeout(None)
        self.sockets.append(server)
        with server:
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            pump(client, server)


class Middlebox(Door):
    """Answers every TLS connection with a certificate of an authority of its own."""

    def __init__(self, folder, issuer="Example Firewall Inspection", versions=None):
        folder.mkdir(parents=True, exist_ok=True)
        key, ca, certificate = folder / "key.pem", folder / "ca.pem", folder / "cert.pem"

        def openssl(*arguments, text=None):
            subprocess.run(
                ["openssl", *map(str, arguments)], check=True, capture_output=True, input=text
            )

        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key)
        openssl("req", "-x509", "-key", key, "-subj", f"/O=Site/CN={issuer}", "-out", ca)
        request = folder / "request.pem"
        openssl("req", "-new", "-key", key, "-subj", "/CN=127.0.0.1", "-out", request)
        openssl(
            *("x509", "-req", "-in", request, "-CA", ca, "-CAkey", key, "-CAcreateserial"),
            *("-days", 2, "-out", certificate),
        )
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificate, key)
        if versions:
            self.context.maximum_version = versions
        super().__init__()

    def serve(self, client):
        with self.context.wrap_socket(client, server_side=True) as tls:
            tls.recv(1)


class Distant:
    """A socket to which everything takes so many seconds."""

    def __init__(self, sink, trip_s):
        self.sink, self.trip_s = sink, trip_s
        self.travelling = queue.SimpleQueue()
        threading.Thread(target=self.deliver, daemon=True).start()

    def sendall(self, data):
        self.travelling.put((time.monotonic() + self.trip_s, data))

    def shutdown(self, how):
        self.sendall(b"")  # The end of the data.

    def deliver(self):
        with contextlib.suppress(OSError):
            while True:
                at, data = self.travelling.get()
                time.sleep(max(0, at - time.monotonic()))
                if not data:
                    return self.sink.shutdown(socket.SHUT_WR)
                self.sink.sendall(data)


class Meter(Door):
    """Carries connections to a port of this machine, and knows when which bytes passed. Each way takes
    `trip_s` seconds."""

    def __init__(self, port, trip_s=0):
        self.to, self.trip_s = port, trip_s
        self.up, self.down = [], []  # (time, bytes) of each piece, to the port and from it.
        super().__init__()

    def serve(self, client):
        server = socket.create_connection(("127.0.0.1", self.to))
        self.sockets.append(server)
        back = threading.Thread(target=self.carry, args=(server, client, self.down), daemon=True)
        back.start()
        self.carry(client, server, self.up)
        back.join()
        server.close()

    def carry(self, source, sink, log):
        if self.trip_s:
            sink = Distant(sink, self.trip_s)
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                log.append((time.monotonic(), len(data)))
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def rate(pieces, share=0.1):
    """Bytes a second of what passed, without the first and the last `share` of the bytes."""
    total = sum(count for _, count in pieces)
    passed, first, last = 0, None, None
    for at, count in pieces:
        passed += count
        if passed >= total * share and first is None:
            first = (at, passed)
        if passed <= total * (1 - share):
            last = (at, passed)
    return (last[1] - first[1]) / (last[0] - first[0])
