#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How exactly --max-upload and --max-download are kept: a limit of a client, and one of a whole server
with some clients at once, each over transfers of 10, 30 and 60 seconds. Measured outside of the programs,
by a relay that logs each piece. Prints the rate that was asked for and the rate that was measured.

    ./dev bench governor [--rate 20mbit] [--seconds 10 30 60] [--clients 3] [--rtt MS]

--rtt: the way there and back takes so many milliseconds, as between two countries.
"""

import argparse
import datetime
import os
import pathlib
import platform
import tempfile

import places  # noqa: F401  It lets tests/process be imported.
from federation import Federation
from proxy_test import readdress
from tunnels import Meter

BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
CONTROL = 32 << 10  # More bytes than a client's control messages have before and after a transfer.


def bytes_per_s(rate):
    digits = rate.rstrip("bgikmt")
    return float(digits) * BITS[rate[len(digits) :]] / 8


def transfer(pieces, control):
    """Bytes and seconds of the transfer in a log, without the control messages around it."""
    total = sum(count for _, count in pieces)
    passed, first, last = 0, None, None
    for at, count in pieces:
        passed += count
        if first is None and passed > control:
            first = (at, passed)
        if passed <= total - control:
            last = (at, passed)
    return last[1] - first[1], last[0] - first[0]


def run(template, folder, names, rounds, parameters, server_flags, client_flags, rtt_s):
    """A run of these clients with their relays, which are returned."""
    federation = template.copy(folder)
    server = federation.server(
        *("--new-run", "--model", f"synthetic:{parameters}", "--rounds", rounds),
        *("--min-clients", len(names), "--deadline", 0, *server_flags),
    )
    meters = []
    for name in names:
        meters.append(Meter(federation.port, rtt_s / 2))
        readdress(federation, name, meters[-1].place)
        federation.client(name, *client_flags)
    code = server.wait(600)
    federation.close()
    for meter in meters:
        meter.close()
    if code != 0:
        raise AssertionError(f"the server failed: {server}")
    return meters


def measure(template, folder, what, names, flag, rate, seconds, rtt_s):
    """One line: what passed of a transfer that should take `seconds`."""
    of_server = what.startswith("a server's")
    parameters = int(bytes_per_s(rate) * seconds / len(names) / 4)
    # A server's upload is its clients' download. The first model is made from the seed, so something
    # comes down in the second round only.
    is_down = (flag == "--max-upload") == of_server
    limits = ((flag, rate), ()) if of_server else ((), (flag, rate))
    meters = run(template, folder, names, 2 if is_down else 1, parameters, *limits, rtt_s)
    logs = [meter.down if is_down else meter.up for meter in meters]
    count, took = transfer(sorted(sum(logs, [])), CONTROL * len(names))
    got = count / took
    asked = bytes_per_s(rate)
    shares = [transfer(log, CONTROL) for log in logs]
    spread = ""
    if of_server:
        rates = [8e-6 * bytes_ / s for bytes_, s in shares]
        spread = f"   clients {min(rates):.2f} to {max(rates):.2f}"
    print(
        f"{what:<28} {seconds:4} s  asked {8e-6 * asked:7.2f}  measured {8e-6 * got:7.2f} Mbit/s "
        f"({100 * (got / asked - 1):+.1f} %) over {took:5.1f} s{spread}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rate", default="20mbit")
    parser.add_argument("--seconds", type=int, nargs="+", default=[10, 30, 60])
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--rtt", type=float, default=0)
    options = parser.parse_args()
    os.umask(0o077)  # Clients refuse state folders that others may use.
    sharing = [f"client-{number}" for number in range(options.clients)]
    print(f"{datetime.date.today()}, {os.cpu_count()} processors, {platform.machine()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="governor-bench-") as name:
        folder = pathlib.Path(name)
        template = Federation(folder / "template")
        server = template.server("--model", "synthetic:1")
        for client in sharing:
            template.join(client)
        server.kill()
        number = 0
        for seconds in options.seconds:
            for what, names, flag in (
                ("a client's --max-upload", sharing[:1], "--max-upload"),
                ("a client's --max-download", sharing[:1], "--max-download"),
                ("a server's --max-upload", sharing, "--max-upload"),
                ("a server's --max-download", sharing, "--max-download"),
            ):
                number += 1
                measure(template, folder / str(number), what, names, flag, options.rate, seconds, options.rtt / 1e3)


if __name__ == "__main__":
    main()
