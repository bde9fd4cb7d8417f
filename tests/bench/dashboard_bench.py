#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What open pages of the dashboard cost a running federation: its rounds a second without a page, with
one, and with eight, in turn in one run.

A page is a process that does what the overview does in a browser: it reads the stream of events, and
when that tells of a new version it fetches the rounds that it does not have yet. All run on one machine, so a page
costs the federation what the server does for it and what its reader does; a browser elsewhere
costs only the former. The server's processor time for a round is printed too.

    ./dev bench dashboard [--turns 3] [--seconds 10]
"""

import argparse
import http.client
import json
import multiprocessing
import os
import pathlib
import statistics
import tempfile
import time

import places  # noqa: F401  It lets tests/process be imported.
from federation import Federation, free_port, wait_until

CLIENTS = 4
PAGES = (0, 1, 8)
UNMEASURED_MAX = 20  # Rounds that a page fetches again, as nobody has measured them (series.js).


def events(port):
    """The status messages of the stream, as they come."""
    line = http.client.HTTPConnection("127.0.0.1", port)
    line.request("GET", "/api/events", headers={"Accept": "text/event-stream"})
    answer = line.getresponse()
    if answer.status != 200:
        raise SystemExit(f"/api/events: HTTP status {answer.status}")
    while text := answer.readline():
        if text.startswith(b"data:"):
            yield json.loads(text[5:])


def fetch_series(port, run, after):
    """Fetches all rounds after this one. Returns how many rounds there are."""
    last = after
    following = after
    while following is not None:
        line = http.client.HTTPConnection("127.0.0.1", port)
        line.request("GET", f"/api/series?run={run}&after={following}")
        page = json.loads(line.getresponse().read())
        line.close()
        column = page["columns"].index("round")
        if page["rows"]:
            last = page["rows"][-1][column]
        following = page["next"]
    return last


def page(port, is_ready):
    version = last = None
    for status in events(port):
        if status["version"] == version:
            continue
        version = status["version"]
        last = fetch_series(port, status["run"], max(0, (last or 0) - UNMEASURED_MAX))
        is_ready.set()


def processor_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(federation, server, port, pages, seconds):
    """Rounds a second, and the server's milliseconds of the processor for a round."""
    readers = []
    for _ in range(pages):
        is_ready = multiprocessing.Event()
        reader = multiprocessing.Process(target=page, args=(port, is_ready), daemon=True)
        reader.start()
        readers.append((reader, is_ready))
    for reader, is_ready in readers:
        wait_until("a page has all rounds", lambda: is_ready.is_set() or not reader.is_alive())
    before, used, began = federation.rounds_done(), processor_s(server.pid), time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    rounds = federation.rounds_done() - before
    used = processor_s(server.pid) - used
    for reader, _ in readers:
        if not reader.is_alive():
            raise SystemExit("a page has ended")
        reader.kill()
        reader.join()
    return rounds / took, 1000 * used / rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--parameters", type=int, default=100000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dashboard-bench-") as folder:
        federation = Federation(pathlib.Path(folder) / "federation")
        port = free_port()
        server = federation.server(
            *f"--model synthetic:{options.parameters} --rounds 1000000 --min-clients {CLIENTS}".split(),
            *("--admin", f"127.0.0.1:{port}"),
        )
        try:
            names = [f"client-{number}" for number in range(CLIENTS)]
            for name in names:
                federation.join(name)
            for name in names:
                federation.client(name)
            wait_until("rounds", lambda: federation.rounds_done() > 20)
            found = {pages: [] for pages in PAGES}
            for _ in range(options.turns):
                for pages in PAGES:
                    found[pages].append(measure(federation, server, port, pages, options.seconds))
        finally:
            federation.close()
    print(f"{CLIENTS} clients, {options.parameters} parameters, load {os.getloadavg()[0]:.1f}")
    for pages, turns in found.items():
        ratios = [mine[0] / none[0] for mine, none in zip(turns, found[0])]
        print(
            f"{pages} pages: {statistics.median(turn[0] for turn in turns):6.1f} rounds/s,"
            f" {statistics.median(turn[1] for turn in turns):5.2f} ms of the server's processor a round,"
            f" rounds/s by those without a page: {' '.join(f'{ratio:.2f}' for ratio in ratios)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
