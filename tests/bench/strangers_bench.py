#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What strangers, and one greedy member, cost a running federation of ten: its rounds a second
before and during each attack, and how long an enrolled client takes to come in meanwhile. The
attacker runs on the same machine and takes its part of the processors.

    ./dev bench strangers [held|renewed|member|handshakes|enrolments ...]
"""

import contextlib
import multiprocessing
import pathlib
import resource
import selectors
import socket
import sys
import tempfile
import time

import places  # noqa: F401  It lets tests/process be imported.
import raw_peer
from federation import Federation, wait_until

CLIENTS = 10
CONNECTIONS = 4200
MEASURED_S = 15


def connect(port):
    stream = socket.socket()
    stream.settimeout(2)
    stream.connect(("127.0.0.1", port))
    stream.setblocking(False)
    return stream


def hold_silent(federation, is_ready, renews):
    """Opens so many connections and says nothing. `renews`: opens those anew that are closed."""
    selector = selectors.DefaultSelector()
    opened = open_now = 0
    while True:
        if renews or opened < CONNECTIONS:
            with contextlib.suppress(OSError):
                while open_now < CONNECTIONS and (renews or opened < CONNECTIONS):
                    selector.register(connect(federation.port), selectors.EVENT_READ)
                    opened, open_now = opened + 1, open_now + 1
        if opened >= CONNECTIONS:
            is_ready.set()
        for key, _ in selector.select(0.05):
            with contextlib.suppress(BlockingIOError):
                with contextlib.suppress(ConnectionError):
                    if key.fileobj.recv(100):
                        continue
                selector.unregister(key.fileobj)
                key.fileobj.close()
                open_now -= 1


def held(federation, is_ready):
    hold_silent(federation, is_ready, renews=False)


def renewed(federation, is_ready):
    hold_silent(federation, is_ready, renews=True)


def member(federation, is_ready):
    """One member opens so many sessions, and goes on."""
    streams = []
    tried = 0
    while True:
        with contextlib.suppress(OSError, raw_peer.Turned):
            streams.append(raw_peer.upgraded(federation, "greedy", raw_peer.HELLO))
        tried += 1
        if tried >= CONNECTIONS:
            is_ready.set()
            time.sleep(1)


def handshakes(federation, is_ready):
    is_ready.set()
    context = raw_peer.tls_context(federation)
    while True:
        with contextlib.suppress(OSError):
            context.wrap_socket(raw_peer.tcp(federation)).close()


def enrolments(federation, is_ready):
    is_ready.set()
    context = raw_peer.tls_context(federation)
    body = b'{"token_id": "0123456789abcdef", "secret": "AAAAAAAAAAAAAAAAAAAAAA", "name": "x", "csr": "x"}'
    request = b"POST /v1/enroll HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    while True:
        with contextlib.suppress(OSError):
            stream = context.wrap_socket(raw_peer.tcp(federation))
            stream.sendall(request)
            stream.recv(1000)
            stream.close()


ATTACKS = (held, renewed, member, handshakes, enrolments)


def rounds_a_second(federation):
    before, began = federation.rounds_done(), time.monotonic()
    time.sleep(MEASURED_S)
    return (federation.rounds_done() - before) / (time.monotonic() - began)


def resident_mib(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) >> 10
    return 0


def measure(attack, folder):
    federation = Federation(folder)
    server = federation.server(
        *f"--model synthetic:100000 --rounds 1000000 --min-clients {CLIENTS} --deadline 30".split()
    )
    names = [f"client-{number}" for number in range(CLIENTS)]
    for name in [*names, "late", "greedy"]:
        federation.join(name)
    for name in names:
        federation.client(name)
    wait_until("rounds", lambda: federation.rounds_done() > 20)
    base = rounds_a_second(federation)
    before = resident_mib(server.pid)
    is_ready = multiprocessing.Event()
    attacker = multiprocessing.Process(target=attack, args=(federation, is_ready), daemon=True)
    attacker.start()
    is_ready.wait()
    began = time.monotonic()
    federation.client("late")
    server.wait_for("late is here")
    late = time.monotonic() - began
    during = rounds_a_second(federation)
    after = resident_mib(server.pid)
    attacker.kill()
    attacker.join()
    again = rounds_a_second(federation)
    print(
        f"{attack.__name__:<11} rounds/s {base:6.1f} -> {during:6.1f} -> {again:6.1f}"
        f" ({100 * during / base:4.0f} %), a client is in after {late:4.1f} s,"
        f" server {before} -> {after} MiB",
        flush=True,
    )
    federation.close()


def main():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for attack in ATTACKS:
        if len(sys.argv) == 1 or attack.__name__ in sys.argv[1:]:
            with tempfile.TemporaryDirectory(prefix="strangers-bench-") as folder:
                measure(attack, pathlib.Path(folder) / "federation")


if __name__ == "__main__":
    main()
