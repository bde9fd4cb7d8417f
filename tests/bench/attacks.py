# SPDX-License-Identifier: Apache-2.0
"""The attacks of attacks_bench.py: of strangers, of members and of readers of the admin pages, as
docs/design/threats.md lists them. Each is a function attack(target) that runs in a process of its
own until it is killed, and calls target.is_ready.set() when its attack is under way."""

import contextlib
import dataclasses
import selectors
import socket
import typing

import raw_peer

MEMBER = "127.0.0.1"  # Where the honest clients are.
ELSEWHERE = ["127.0.0.2"]
FORTY = [f"127.0.1.{number}" for number in range(1, 41)]


@dataclasses.dataclass
class Target:
    federation: typing.Any
    admin: tuple  # Host and port of the admin pages.
    is_ready: typing.Any


def from_two_processes(attack):
    attack.processes = 2
    return attack


# Sockets ----------------------------------------------------------------------------------------


def connect(place, source=MEMBER):
    stream = socket.socket()
    stream.settimeout(2)
    try:
        stream.bind((source, 0))
        stream.connect(place)
    except OSError:
        stream.close()
        raise
    stream.setblocking(False)
    return stream


def drop_ended(selector):
    """Reads what has come within a moment. Closes the connections that have ended, and returns them."""
    ended = []
    for key, _ in selector.select(0.05):
        with contextlib.suppress(BlockingIOError):
            with contextlib.suppress(ConnectionError):
                if key.fileobj.recv(1 << 20):
                    continue
            selector.unregister(key.fileobj)
            key.fileobj.close()
            ended.append(key.fileobj)
    return ended


def hold(target, place, count, first=b"", sources=(MEMBER,), renews=True):
    """Opens so many connections in turn from these addresses, sends `first` on each and no more.
    `renews`: opens those anew that are closed."""
    selector = selectors.DefaultSelector()
    opened = open_now = 0
    while True:
        with contextlib.suppress(OSError):
            while open_now < count and (renews or opened < count):
                stream = connect(place, sources[opened % len(sources)])
                selector.register(stream, selectors.EVENT_READ)
                opened, open_now = opened + 1, open_now + 1
                if first:
                    with contextlib.suppress(OSError):
                        stream.send(first)
        if opened >= count:
            target.is_ready.set()
        open_now -= len(drop_ended(selector))


def server_of(target):
    return "127.0.0.1", target.federation.port


# Strangers --------------------------------------------------------------------------------------


def silent_held(target):
    hold(target, server_of(target), 4200, renews=False)


def silent_renewed(target):
    hold(target, server_of(target), 4200)


def halves(target):
    """Half a ClientHello on each of so many connections, from the honest clients' own address."""
    hello = raw_peer.client_hello()
    hold(target, server_of(target), 1500, hello[: len(hello) // 2])


def halves_of_40(target):
    hello = raw_peer.client_hello()
    hold(target, server_of(target), 2000, hello[: len(hello) // 2], FORTY)


def stalls(target):
    """A whole ClientHello, and then nothing."""
    hold(target, server_of(target), 500, raw_peer.client_hello(), ELSEWHERE)


def stalls_of_40(target):
    hold(target, server_of(target), 1000, raw_peer.client_hello(), FORTY)


@from_two_processes
def handshakes(target):
    target.is_ready.set()
    context = raw_peer.tls_context(target.federation)
    while True:
        with contextlib.suppress(OSError):
            context.wrap_socket(raw_peer.tcp(target.federation)).close()


@from_two_processes
def enrolments(target):
    target.is_ready.set()
    context = raw_peer.tls_context(target.federation)
    body = b'{"token_id": "0123456789abcdef", "secret": "AAAAAAAAAAAAAAAAAAAAAA", "name": "x", "csr": "x"}'
    request = b"POST /v1/enroll HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    while True:
        with contextlib.suppress(OSError):
            stream = context.wrap_socket(raw_peer.tcp(target.federation))
            stream.sendall(request)
            stream.recv(1000)
            stream.close()


# Members ----------------------------------------------------------------------------------------

CLOSED = (OSError, raw_peer.Turned)


def sessions(target):
    """One member opens sessions and holds them."""
    target.is_ready.set()
    held = []
    while True:
        with contextlib.suppress(*CLOSED):
            held.append(raw_peer.upgraded(target.federation, "evil", raw_peer.HELLO_EVALUATOR))
        if len(held) > 1000:
            held.pop(0).close()


@from_two_processes
def returns(target):
    """One member comes, is Ready, and breaks the connection, again and again."""
    target.is_ready.set()
    while True:
        with contextlib.suppress(*CLOSED):
            raw_peer.upgraded(
                target.federation, "evil", raw_peer.HELLO_EVALUATOR, raw_peer.READY_EVALUATOR
            ).close()


@from_two_processes
def junk(target):
    """A trainer comes, is Ready, sends what is no message, leaves, and comes back at once."""
    target.is_ready.set()
    while True:
        with contextlib.suppress(*CLOSED):
            stream = raw_peer.upgraded(
                target.federation, "evil-trainer", raw_peer.HELLO, raw_peer.READY
            )
            with stream:
                stream.recv(1 << 14)  # Welcome, and perhaps the offer.
                stream.sendall(100 * raw_peer.websocket_frame(b"\xff" * 100))


def flood(target):
    """One member says as fast as the line takes it that tasks have failed, asks for versions, and
    comes back when it is cut off."""
    target.is_ready.set()
    # Header{failed{task: 1, reason: "xxx..."}} and Header{fetch{}}.
    failed = b"\x08\x01\x1a" + bytes([90]) + b"x" * 90
    messages = raw_peer.websocket_frame(b"\x92\x02" + bytes([len(failed)]) + failed)
    messages += raw_peer.websocket_frame(b"\x12\x00")
    while True:
        with contextlib.suppress(*CLOSED):
            stream = raw_peer.upgraded(
                target.federation, "evil", raw_peer.HELLO_EVALUATOR, raw_peer.READY_EVALUATOR
            )
            with stream:
                while True:
                    stream.sendall(messages * 64)


# Readers of the admin pages ---------------------------------------------------------------------


def admin_sockets(target):
    hold(target, target.admin, 2000)


def admin_pages(target):
    """Four connections ask for pages as fast as they are answered."""
    target.is_ready.set()
    paths = ("/api/rounds", "/api/status", "/api/series", "/metrics")
    waiting = {}
    selector = selectors.DefaultSelector()

    def ask(path):
        with contextlib.suppress(OSError):
            stream = connect(target.admin)
            stream.send(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
            selector.register(stream, selectors.EVENT_READ)
            waiting[stream] = path

    while True:
        for path in set(paths) - set(waiting.values()):
            ask(path)
        for stream in drop_ended(selector):
            del waiting[stream]


ATTACKS = (
    *(silent_held, silent_renewed, halves, halves_of_40, stalls, stalls_of_40),
    *(handshakes, enrolments, sessions, returns, junk, flood, admin_sockets, admin_pages),
)
