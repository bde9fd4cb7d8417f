#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Three datacenters of two ranks each train one byte-level transformer on books, over links of a
given rate: one model in step across the links, or a federation that meets once a round. One of them
has trained alone before; all begin with its model. Prints, for each way of training, what it costs
to come to the same loss.

    ./dev bench cross-datacenter            a short form, nine minutes on two cores
    python3 examples/cross-datacenter/compare.py --rounds 50 --rates 100mbit,10mbit,1mbit

Losses and bytes do not depend on the rate of a link. So each way trains once over links that are not
shaped; over the others it only takes a few rounds, from whose pace the time follows.
"""

import argparse
import collections
import json
import math
import os
import pathlib
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time

from books import read_books, split_book
from wide_area import HERE, WideArea, enter_namespaces

BIN = pathlib.Path(os.environ.get("FL_BIN", pathlib.Path(__file__).parents[2] / "build/bin"))
SITES = ("site-a", "site-b", "site-c")
RANKS = 2  # For each site.
BATCH = 8  # For each rank.
MODEL = "transformer:layers=2,width=64,heads=4,context=128"
PARAMETERS = 124_672
TRAINING = ("--optimizer", "adamw", "--lr", 0.003, "--batch-size", BATCH)
PROGRAM_WAIT_MAX_S = 3600

Way = collections.namedtuple(
    "Way",
    "name server client sites is_one_site ranks model meets",
    defaults=(SITES, False, RANKS, MODEL, 1),
)
"""`is_one_site`: all ranks of all sites are one client, and reduce gradients in every step. `ranks`:
of each site. `meets`: how often the sites meet where others do once, after so many fewer steps."""

ALONE = Way("alone", ("--codec", "none"), ("--keep-moments",), SITES[:1])


def in_step(name, *hook):
    return Way(name, (), (*hook, "--keep-moments"), is_one_site=True)


def federated(name, up, down, *server, meets=1):
    codecs = ("--codec", up, "--downlink-codec", down)
    return Way(name, (*codecs, *server), ("--keep-moments",), meets=meets)


# A 64th of the values, in 2 bits. The values that were left out come later, so the server needs no
# momentum.
SPARSE = "topk:0.015625,scope=global,dense_below=1+ecuq:2+ef:0.95"
# The sum of three such updates has three times as many values.
OF_THREE = "topk:0.046875,scope=global,dense_below=1+ecuq:4"
WAYS = (
    in_step("in step, fp16", "--hook", "fp16", "--topology", "hierarchical"),
    in_step("in step, powersgd:4", "--hook", "powersgd:4,start=8", "--topology", "hierarchical"),
    federated("diloco, fp32", "none", "none", "--strategy", "diloco"),
    federated("diloco, ecuq:2+ef, 4", "ecuq:2+ef", "ecuq:4", "--strategy", "diloco"),
    federated("diloco, ecuq:2+ef, 2", "ecuq:2+ef", "ecuq:2", "--strategy", "diloco"),
    federated("diloco, ecuq:1+ef, 2", "ecuq:1+ef", "ecuq:2", "--strategy", "diloco"),
    federated("topk 1/64, once", SPARSE, "ecuq:4", "--strategy", "fedavg"),
    federated("topk 1/64, 4x", SPARSE, OF_THREE, "--strategy", "fedavg", meets=4),
    federated("topk 1/64, 8x", SPARSE, OF_THREE, "--strategy", "fedavg", meets=8),
)

Round = collections.namedtuple("Round", "loss seconds bits up down")
"""Of one round: the loss of its model on held-out text, how long it took, the bits of an update for
each parameter, and the bytes that have gone over one site's link since the beginning. Means over the
sites."""


Trained = collections.namedtuple("Trained", "rounds use pace steps")
"""`rounds` over links that are not shaped, of `steps` steps each; by rate: the part of the time in
which ranks computed, and the median seconds of so many steps."""


class Training:
    """One training, in a wide area of its own. `folder` is new; `books` has site-a/ ... and test/."""

    def __init__(self, way, books, folder, rounds, steps, rate=None, start=None, seed=0):
        self.way, self.books, self.folder = way, books, folder
        self.rounds, self.steps, self.rate, self.seed = rounds, steps, rate, seed
        self.start_weights = start  # A file, or None: random weights.
        self.programs = []

    def run(self):
        """Returns its rounds, and the part of the time in which a rank computed."""
        self.folder.mkdir()
        # In step, the coordinator stands beside the first rank. Otherwise it stands elsewhere.
        self.home = self.way.sites[0] if self.way.is_one_site else None
        with WideArea(self.way.sites, self.rate) as self.area:
            try:
                server = self.start_server()
                if self.way.is_one_site:
                    self.start_one_site()
                else:
                    self.start_sites()
                self.start_evaluator()
                return self.watch(server), self.utilisation()
            finally:
                for program in self.programs:
                    program.kill()
                    program.wait()

    def start(self, place, name, *command, variables=()):
        command = [str(word) for word in command]
        if place:
            command = self.area.command(place, command)
        with open(self.folder / f"{name}.log", "wb") as log:
            program = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **dict(variables)}
            )
        self.programs.append(program)
        return program

    def start_server(self):
        ready = self.folder / "ready.json"
        address = self.area.addresses.get(self.home, HERE)
        server = self.start(
            *(self.home, "server", BIN / "fl-server", "--state", self.folder / "server"),
            *("--listen", "0.0.0.0:8443", "--advertise", f"{address}:8443", "--admin", "off"),
            *("--ready-file", ready, "--model", self.way.model, *TRAINING, "--rounds", self.rounds),
            *("--local-steps", self.steps, "--deadline", 0, "--seed", self.seed),
            *("--min-clients", 1 if self.way.is_one_site else len(self.way.sites)),
            *(("--initial-weights", self.start_weights) if self.start_weights else ()),
            *self.way.server,
        )
        while not ready.exists():
            if server.poll() is not None:
                sys.exit((self.folder / "server.log").read_text())
            time.sleep(0.05)
        return server

    def join(self, name, *flags):
        """Returns the beginning of a client's command line."""
        enroll = (BIN / "fl-server", "enroll", "--state", self.folder / "server", "--name", name)
        token = subprocess.run(
            [*map(str, enroll), *flags], check=True, capture_output=True, text=True
        ).stdout.strip()
        return (BIN / "fl-client", "--state", self.folder / name, "--join", token, "--holdout", 0)

    def start_sites(self):
        for name in self.way.sites:
            client = self.join(name)
            data = ("--data", f"text:{self.books / name}", "--ranks", self.way.ranks, "--threads", self.way.ranks)
            self.start(name, name, *client, *data, *self.way.client)

    def start_one_site(self):
        """All ranks, as a launcher would start them. Only the first one joins."""
        secret = self.folder / "secret"
        secret.write_bytes(os.urandom(32).hex().encode())
        secret.chmod(0o600)
        client = self.join("all-sites")
        sites, ranks = self.way.sites, self.way.ranks
        count = len(sites) * ranks
        for rank in range(count):
            place = sites[rank // ranks]
            variables = {
                "RANK": rank,
                "WORLD_SIZE": count,
                "LOCAL_RANK": rank % ranks,
                "LOCAL_WORLD_SIZE": ranks,
                "MASTER_ADDR": self.area.addresses[sites[0]],
                "MASTER_PORT": 29400,
            }
            self.start(
                *(place, f"rank-{rank}", *client, "--data", f"text:{self.books / 'all'}"),
                *("--site", "--site-secret-file", secret, "--site-interface", "eth0"),
                *("--threads", ranks, *self.way.client),
                variables={key: str(value) for key, value in variables.items()},
            )

    def start_evaluator(self):
        client = self.join("evaluator", "--role", "evaluator")
        data = ("--data", f"text:{self.books / 'test'}", "--threads", 1)
        self.start(self.home, "evaluator", *client, *data, "--evaluate-only")

    def watch(self, server):
        """Notes the links' bytes at the end of each round, until the run is over."""
        sent = [self.bytes()]
        end = time.monotonic() + PROGRAM_WAIT_MAX_S
        while server.poll() is None:
            done = self.query("SELECT count(*) FROM round WHERE ended_at IS NOT NULL")[0][0]
            while len(sent) <= done:
                sent.append(self.bytes())
            if time.monotonic() > end or any(program.poll() for program in self.programs):
                said = "\n".join(log.read_text()[-1000:] for log in self.folder.glob("*.log"))
                sys.exit(f"{self.way.name}: a program failed, or took too long\n{said}")
            time.sleep(0.05)
        rows = self.query(
            "SELECT e.value, r.ended_at - r.started_at, avg(8.0 * t.update_bytes) FROM round AS r"
            " JOIN evaluation AS e ON e.version = r.round AND e.name = 'loss'"
            " JOIN task AS t ON t.round = r.round AND t.state = 'accepted'"
            " GROUP BY r.round ORDER BY r.round"
        )
        sent += [self.bytes()] * (len(rows) + 1 - len(sent))
        return [
            Round(*row[:2], row[2] / PARAMETERS, now[0] - sent[0][0], now[1] - sent[0][1])
            for row, now in zip(rows, sent[1:], strict=True)
        ]

    def bytes(self):
        """Up and down over one site's link, in the mean."""
        links = [self.area.bytes(name) for name in self.way.sites]
        return tuple(statistics.mean(counts) for counts in zip(*links, strict=True))

    def utilisation(self):
        rows = self.query(
            "SELECT sum(s.compute_seconds) / count(DISTINCT s.client),"
            " (SELECT sum(ended_at - started_at) FROM round) FROM site_summary AS s"
        )
        return rows[0][0] / rows[0][1]

    def query(self, sql):
        path = self.folder / "server/history.sqlite"
        history = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
        try:
            return history.execute(sql).fetchall()
        finally:
            history.close()


def write_books(texts, folder):
    """Deals the books out to the sites, the largest first, each to the one that has least."""
    books = {name: split_book(lines) for name, lines in texts.items()}
    sizes = dict.fromkeys(SITES, 0)
    for name in sorted(books, key=lambda name: (-len(books[name][0]), name)):
        train, test = books[name]
        site = min(SITES, key=lambda site: (sizes[site], site))
        sizes[site] += len(train)
        for part, text in ((site, train), ("all", train), ("test", test)):
            (folder / part).mkdir(exist_ok=True)
            (folder / part / f"{name}.txt").write_text(text)


def read_texts(folder):
    """Returns the lines of each text in the folder, by its name."""
    texts = {path.stem: path.read_text().splitlines(True) for path in folder.glob("*.txt")}
    if len(texts) < len(SITES):
        sys.exit(f"{folder} has {len(texts)} *.txt files: at least {len(SITES)} are needed")
    return texts


def prepare_books(folder, texts):
    """Returns a new folder with the sites' books: the Bible's, or those of the folder `texts`."""
    books = folder / "books"
    books.mkdir()
    write_books(read_texts(texts) if texts else read_books(), books)
    return books


def bits(loss):
    return loss / math.log(2)


def first_at(rounds, loss):
    """The number of the first round whose loss is that low, or within half a percent."""
    return next(i for i, each in enumerate(rounds, 1) if each.loss <= loss * 1.005)


def sent(done):
    """The bytes over one site's link until the end of a round, in both directions."""
    return done.up + done.down


def train_alone(options, books, folder):
    """Returns the file of the model with which all ways begin, and its loss."""
    first = Training(
        ALONE, books, folder / "alone", options.alone, options.steps, seed=options.seed
    )
    rounds, _ = first.run()
    print(f"after {len(rounds)} rounds of {SITES[0]} alone: {bits(rounds[-1].loss):.4f} bits per byte")
    file = folder / f"alone/server/checkpoints/round-{len(rounds):06d}.safetensors"
    return file, rounds[-1].loss


def train_all(options, books, folder):
    """Returns what each way has trained, by its name, and the loss with which all began."""
    rates = [None, *filter(None, options.rates.split(","))]
    start, start_loss = train_alone(options, books, folder)
    found = {}
    for number, way in enumerate(WAYS):
        if options.only and not any(word in way.name for word in options.only.split("|")):
            continue
        trained = Trained(None, {}, {}, options.steps // way.meets)
        for rate in rates:
            rounds, steps = options.rounds * way.meets, trained.steps
            if rate is not None:
                rounds = options.timed_rounds
                # All steps are alike where the ranks meet in each.
                steps = max(1, steps // 6) if way.is_one_site else steps
            place = folder / f"{number}-{rate}"
            training = Training(way, books, place, rounds, steps, rate, start, options.seed)
            done, use = training.run()
            # The first round has the beginning of all programs in it.
            pace = statistics.median(each.seconds for each in done[1:]) * trained.steps / steps
            trained.use[rate], trained.pace[rate] = use, pace
            if rate is None:
                trained = trained._replace(rounds=done)
            print(
                f"{way.name:26} {rate or 'not shaped':>10}: {pace:.2f} s a round of {trained.steps}"
                f" steps, {100 * use:.0f} % computing; {bits(done[-1].loss):.4f} bits per byte"
                f" after {len(done)} rounds",
                flush=True,
            )
        found[way.name] = trained
    return found, start_loss


def report(found, start_loss):
    """For each way: what its training costs until its loss is one that the first way, which is in
    step, reaches too, and what the first way costs until then."""
    reference = next(iter(found.values()))
    rates = list(reference.pace)
    times = "".join(f"{f's at {rate}' if rate else 's':>14}" for rate in rates)
    print(
        f"\n{'way':26}{'bits/byte':>10}{'MB up':>9}{'MB down':>9}{'bits':>8}"
        f"{'to':>8}{'steps':>7}{'in step':>9}{'bytes':>8}{times}"
    )
    for name, trained in found.items():
        last = trained.rounds[-1]
        up, down = last.up / 1e6, last.down / 1e6
        # Ranks in step are one client, whose update crosses no link.
        bits_up = "-" if name.startswith("in step") else f"{last.bits:.3f}"
        print(f"{name:26}{bits(last.loss):10.4f}{up:9.2f}{down:9.2f}{bits_up:>8}", end="")
        goal = max(last.loss, reference.rounds[-1].loss)
        if goal >= start_loss:
            print(f"{'-':>8}  no better than its start")
            continue
        own, first = first_at(trained.rounds, goal), first_at(reference.rounds, goal)
        part = sent(reference.rounds[first - 1]) / sent(trained.rounds[own - 1])
        spent = "".join(
            f"{f'{own * trained.pace[rate]:.0f} ({100 * trained.use[rate]:.0f} %)':>14}"
            for rate in rates
        )
        print(
            f"{bits(goal):8.4f}{own * trained.steps:>7}{first * reference.steps:>9}"
            f"{f'1/{part:.0f}':>8}{spent}"
        )
    print("MB: over one site's link, with all headers. bits: of an update for each parameter.")
    print("to: the higher of the last losses of this way and of the first one. steps, in step: after")
    print("how many this way and the first one are there, within 0.5 %. bytes, s: until then.")
    print("(%): of the time, in which ranks computed")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--alone", type=int, default=16, help="rounds of the first site before")
    parser.add_argument("--steps", type=int, default=48, help="of each rank in a round")
    parser.add_argument("--rates", default="10mbit", help="of each site's link, as tc has them")
    parser.add_argument("--timed-rounds", type=int, default=3, help="over each shaped link")
    parser.add_argument("--text", type=pathlib.Path, help="a folder of *.txt instead of the Bible")
    parser.add_argument("--only", help="ways whose name has this, or these: fp16|ecuq")
    parser.add_argument("--seed", type=int, default=0, help="of first weights and shuffles")
    parser.add_argument("--json", help="also write what was measured to this file")
    options = parser.parse_args()
    enter_namespaces()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        books = prepare_books(folder, options.text)
        print(f"{MODEL}, {PARAMETERS} parameters; {len(SITES)} sites of {RANKS} ranks\n")
        found, start_loss = train_all(options, books, folder)
    report(found, start_loss)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
