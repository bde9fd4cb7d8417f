#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A federation of 200 members of which ten are malicious, for half an hour: a real fl-server over TLS,
190 fl-clients, and two members each that flood, trickle, keep silent, send other bytes than they
announce, and claim impossible figures. Before, the 190 run alone for a sixth of that time. Prints
rounds a second, the server's memory, and the bytes of its log and history, minute by minute. All
programs share this machine's processors.

    ./dev bench soak [--minutes 30] [--members 200]
"""

import argparse
import asyncio
import concurrent.futures
import contextlib
import os
import pathlib
import resource
import tempfile
import threading
import time

import places  # noqa: F401  It lets tests/process be imported.
from federation import Federation, wait_until
from process_table import memory_of
from python_peer import Ended, Peer, WebSocketException, wire

ELEMENTS = 10_000
FLAGS = (
    f"--model synthetic:{ELEMENTS} --rounds 10000000 --clients-per-round 20 --min-clients 15 --deadline 5 "
    "--keep-checkpoints 2"
).split()
CLOSED = (OSError, WebSocketException, ConnectionError, asyncio.TimeoutError, Ended)


async def flood(peer):
    """Says that tasks of others have failed, and asks for versions, as fast as the line takes it."""
    for number in range(1_000_000):
        await peer.send(failed=wire.Failed(task=number, reason="x" * 900))
        await peer.send(fetch=wire.Fetch(version=0))
        await asyncio.sleep(0)  # The end of the session is heard only while this waits.


async def silent(peer):
    """Reads, and answers nothing."""
    while True:
        await peer.ws.recv()


async def trickle(peer):
    """Sends a byte of its update in each second."""
    begin, payload = await peer.make_update()
    await peer.send(begin=begin)
    await peer.resume()
    for at in range(len(payload)):
        chunk = wire.Chunk(transfer=begin.task, offset=at)
        await peer.send(payload[at : at + 1], chunk=chunk)
        await asyncio.sleep(1)


async def wrong_digest(peer):
    """Announces other bytes than it sends."""
    while True:
        begin, payload = await peer.make_update()
        begin.digest = bytes(16)
        await peer.send(begin=begin)
        header, _ = await peer.receive("resume", "verdict")
        if header.HasField("resume"):
            await peer.send_chunks(header.resume)
            await peer.verdict()


async def claims(peer):
    """Announces a weight, steps and a loss that can't be."""
    lies = [dict(examples=2**62), dict(steps=2**31), dict(loss=float("nan")), dict(train_seconds=-1)]
    while True:
        for lie in lies:
            begin, _ = await peer.make_update(**lie)
            await peer.send(begin=begin)
            await peer.receive("resume", "verdict")


KINDS = (flood, silent, trickle, wrong_digest, claims)


async def live(federation, name, act, is_over):
    """Comes back a second after each end, until the bench is over."""
    while not is_over.is_set():
        with contextlib.suppress(*CLOSED):
            async with asyncio.timeout(600), Peer(federation, name) as peer:
                await peer.shake_hands()
                await act(peer)
        await asyncio.sleep(1)


def misbehave(federation, names, is_over):
    async def all_of_them():
        acts = [KINDS[i % len(KINDS)] for i in range(len(names))]
        lives = [live(federation, *each, is_over) for each in zip(names, acts)]
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*lives)

    asyncio.run(all_of_them())


class Meter:
    def __init__(self, federation, server):
        self.federation, self.server = federation, server

    def look(self):
        rounds = self.federation.query("SELECT ifnull(max(round), 0) FROM round_summary")[0][0]
        resident = memory_of(self.server.pid, "VmRSS") >> 20
        history = sum(file.stat().st_size for file in self.federation.state.glob("history.sqlite*"))
        return time.monotonic(), rounds, resident, self.server.err.stat().st_size, history

    def run(self, what, minutes):
        """Prints a line for each minute, and returns the rounds a second of all."""
        first = last = self.look()
        for minute in range(1, minutes + 1):
            time.sleep(max(0, first[0] + 60 * minute - time.monotonic()))
            now = self.look()
            rate = (now[1] - last[1]) / (now[0] - last[0])
            print(
                f"{what:<14} minute {minute:2}: {rate:6.2f} rounds/s, server {now[2]} MiB, "
                f"log +{now[3] - last[3]} bytes, history {now[4] >> 10} KiB",
                flush=True,
            )
            last = now
        rate = (last[1] - first[1]) / (last[0] - first[0])
        log = (last[3] - first[3]) / max(1, last[1] - first[1])
        print(f"{what}: {rate:.2f} rounds/s, {log:.0f} bytes of log a round, server {last[2]} MiB")
        return rate


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--members", type=int, default=200)
    options = parser.parse_args()
    os.umask(0o077)  # Clients refuse state folders that others may use.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    malicious = [f"mallory-{number}" for number in range(max(5, options.members // 20))]
    honest = [f"client-{number}" for number in range(options.members - len(malicious))]
    with tempfile.TemporaryDirectory(prefix="soak-bench-") as folder:
        federation = Federation(pathlib.Path(folder) / "federation")
        server = federation.server(*FLAGS)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(federation.join, [*honest, *malicious]))
        for name in honest:
            federation.client(name, "--threads", "1")
        wait_until("rounds", lambda: federation.rounds_done() > 20, 600)
        meter = Meter(federation, server)
        alone = meter.run("honest alone", max(1, options.minutes // 6))
        is_over = threading.Event()
        attack = threading.Thread(
            target=misbehave, args=(federation, malicious, is_over), daemon=True
        )
        attack.start()
        attacked = meter.run("ten malicious", options.minutes)
        is_over.set()
        print(f"{100 * attacked / alone:.0f} % of the rounds a second")
        events = federation.query("SELECT count(*) FROM event")[0][0]
        lost = "SELECT count(*) FROM task WHERE client LIKE 'mallory%' AND state = 'accepted'"
        print(f"{events} events; updates of malicious members that count: {federation.query(lost)[0][0]}")
        still = sum(program.running() for program in federation.programs)
        print(f"{still - 1} of {len(honest)} honest clients still take part")
        federation.close()


if __name__ == "__main__":
    main()
