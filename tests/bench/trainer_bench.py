#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What it costs that a trainer is a program of its own.

  round   The seconds of a round of 10 M parameters whose two trainers return numbers at once: Python
          programs with the package tributary_fl, in numpy and in PyTorch, against synthetic:10000000
          inside fl-client. The three kinds of runs alternate.
  torch   The images a second of a small CNN that PyTorch trains through the package, against a bare
          loop of PyTorch on the same data, in turn in the same program. Times of a program of its own
          differ by 20 % from start to start.
  simulate
          The images a second of a LeNet in a simulation: 100 clients of 600 images on two workers, against
          a bare loop on two processes, in turn; and the processor's seconds of the whole programs, which
          depend less on what else the machine does.

    ./dev bench trainer [round|torch|simulate ...]

FL_PYTHON names the Python, which needs numpy and PyTorch; by default python3."""

import os
import statistics
import subprocess
import sys
import tempfile

from places import SOURCE
from federation import Federation

PYTHON = os.environ.get("FL_PYTHON", "python3")
PARAMETERS = 10_000_000
ROUNDS = 10
REPEATS = 3

AT_ONCE = """
import sys
import numpy as np
import tributary_fl as fl
from tributary_fl.numpy import Trainer

class AtOnce(Trainer):
    def train(self, weights, task):
        weights["weight"] = weights["weight"] + self.noise
        return fl.TrainReport(1, 0.0)

trainer = AtOnce({"weight": np.zeros(%d, np.float32)}, 1000)
trainer.noise = np.random.default_rng(0).standard_normal(%d, np.float32)
fl.run(trainer, state=sys.argv[1])
""" % (
    PARAMETERS,
    PARAMETERS,
)

TORCH_AT_ONCE = """
import sys
import torch
import tributary_fl as fl
from tributary_fl.torch import Trainer

class AtOnce(Trainer):
    def train(self, task):
        with torch.no_grad():
            self.model.weight.add_(noise)
        return fl.TrainReport(1, 0.0)

net = torch.nn.Linear(1000, %d, bias=False)
noise = torch.randn_like(net.weight)
fl.run(AtOnce(net, (torch.zeros(1000, 1000), torch.zeros(1000))), state=sys.argv[1])
""" % (
    PARAMETERS // 1000
)

MODEL = """
import sys, time
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
x, y = torch.randn(6000, 1, 28, 28), torch.randint(10, (6000,))
net = nn.Sequential(nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2),
                    nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
"""

# Each round it trains once through the package and once in a bare loop.
THROUGH = (
    MODEL
    + """
import copy
import tributary_fl as fl
from tributary_fl.torch import Trainer

other = copy.deepcopy(net)
optimizer = torch.optim.SGD(other.parameters(), lr=0.01)

def bare():
    order = torch.randperm(len(x))
    for first in range(0, len(x), 64):
        part = order[first:first + 64]
        optimizer.zero_grad()
        nn.functional.cross_entropy(other(x[part]), y[part]).backward()
        optimizer.step()

class Timed(Trainer):
    def on_train(self, task):
        begin = time.perf_counter()
        report = super().on_train(task)
        middle = time.perf_counter()
        bare()
        with open(sys.argv[2], "a") as file:
            print(middle - begin, time.perf_counter() - middle, file=file)
        return report

fl.run(Timed(net, (x, y)), state=sys.argv[1])
"""
)


# Each repeat simulates some rounds, and then trains as many in bare loops.
SIMULATE = """
import multiprocessing, resource, sys, time
import torch
from torch import nn
import tributary_fl as fl
from tributary_fl.torch import Trainer

CLIENTS, EXAMPLES, WORKERS, WARM_UP, ROUNDS, REPEATS = 100, 600, 2, 1, 2, 7
torch.set_num_threads(1)
torch.manual_seed(0)
x, y = torch.randn(CLIENTS, EXAMPLES, 1, 28, 28), torch.randint(10, (CLIENTS, EXAMPLES))

def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84),
        nn.ReLU(), nn.Linear(84, 10))

def factory(client):
    return Trainer(lenet, (x[client], y[client]))

def simulated(state):
    history = fl.simulate(factory, CLIENTS, rounds=ROUNDS + WARM_UP, workers=WORKERS, state=state,
                          log=state + "-log", options=["--batch-size", "64"])
    rounds = history.rounds[history.rounds["run_id"] == history.runs["id"].max()]
    return sum(rounds["seconds"][WARM_UP:])

def loop(first, barrier):
    net = lenet()
    for turn in range(ROUNDS + WARM_UP):
        if turn in (0, WARM_UP):
            barrier.wait()
        for client in range(first, CLIENTS, WORKERS):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
            order = torch.randperm(EXAMPLES)
            for start in range(0, EXAMPLES, 64):
                part = order[start:start + 64]
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x[client][part]), y[client][part]).backward()
                optimizer.step()
    barrier.wait()

def bare():
    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(WORKERS + 1)
    loops = [fork.Process(target=loop, args=(k, barrier)) for k in range(WORKERS)]
    for one in loops:
        one.start()
    barrier.wait()
    barrier.wait()
    begin = time.perf_counter()
    barrier.wait()
    seconds = time.perf_counter() - begin
    for one in loops:
        one.join()
    return seconds

def processor():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

images = CLIENTS * EXAMPLES * ROUNDS
for _ in range(REPEATS):
    begin = processor()
    ours = images / simulated(sys.argv[1])
    middle = processor()
    theirs = images / bare()
    print(ours, theirs, middle - begin, processor() - middle, flush=True)
"""


def script(federation, name, text):
    path = federation.folder / f"{name}.py"
    path.write_text(text)
    return f"{PYTHON} {path}"


def finish(*programs):
    for program in programs:
        if program.wait(600) != 0:
            raise SystemExit(str(program))


def trainer_flags(federation, name, text):
    python_path = f"PYTHONPATH={SOURCE / 'client/python'}:{os.environ.get('PYTHONPATH', '')}"
    places = f" {federation.folder / 'trainer-state'} {federation.folder / 'times'}"
    command = script(federation, name, text) + places
    return ("--trainer", command, "--trainer-env", python_path)


def rounds_of(federation, server_flags, client_flags, clients):
    """Runs a federation; returns the seconds of its rounds without the first, in which programs
    start."""
    server = federation.server(
        "--new-run", "--rounds", ROUNDS, "--min-clients", len(clients), *server_flags
    )
    finish(server, *[federation.client(name, *client_flags) for name in clients])
    rows = federation.query(
        "SELECT seconds FROM round_summary"
        " WHERE run_id = (SELECT max(id) FROM run) AND round > 1"
    )
    return [row[0] for row in rows]


def initial(federation, flags, name="initial"):
    path = federation.folder / f"{name}.safetensors"
    finish(federation.client("maker", *flags, "initial-weights", path))
    return ("--model", "custom:bench", "--initial-weights", path)


def tell(what, ours, theirs):
    print(f"{what}: {ours:.3f} against {theirs:.3f}, {ours / theirs:.2f} times", flush=True)


def bench_round(federation):
    programs = {"numpy": AT_ONCE, "PyTorch": TORCH_AT_ONCE}
    flags = {name: trainer_flags(federation, f"in_{name}", text) for name, text in programs.items()}
    custom = {name: initial(federation, flags[name], name) for name in programs}
    codec = ("--codec", "ecuq:1+ef")
    inside, outside = [], {name: [] for name in programs}
    for _ in range(REPEATS):
        synthetic = ("--model", f"synthetic:{PARAMETERS}", *codec)
        inside += rounds_of(federation, synthetic, (), "ab")
        for name in programs:
            outside[name] += rounds_of(federation, (*custom[name], *codec), flags[name], "ab")
    for name, seconds in outside.items():
        tell(
            f"seconds a round, a program in {name} against synthetic",
            statistics.median(seconds),
            statistics.median(inside),
        )


def bench_torch(federation):
    flags = trainer_flags(federation, "through", THROUGH)
    custom = initial(federation, flags)
    rounds_of(federation, (*custom, "--batch-size", 64, "--rounds", ROUNDS * REPEATS), flags, "a")
    lines = (federation.folder / "times").read_text().splitlines()[2:]
    through, alone = zip(*[[float(word) for word in line.split()] for line in lines])
    tell(
        "images a second of PyTorch, through the package against a bare loop",
        6000 / statistics.median(through),
        6000 / statistics.median(alone),
    )


def bench_simulate(federation):
    path = federation.folder / "simulate.py"
    path.write_text(SIMULATE)
    package = f"{SOURCE / 'client/python'}:{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [PYTHON, path, federation.folder / "simulated"],
        env={**os.environ, "PYTHONPATH": package},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    rows = [[float(word) for word in line.split()] for line in done.stdout.splitlines()]
    for at, what in (0, "images a second"), (2, "seconds of the processor"):
        ratios = [row[at] / row[at + 1] for row in rows]
        ours, theirs = (statistics.median(row[column] for row in rows) for column in (at, at + 1))
        print(f"{what}, 100 simulated clients against bare loops on as many processes:")
        print("  ratio of each turn:", *(f"{ratio:.3f}" for ratio in ratios))
        print(f"  their median: {statistics.median(ratios):.3f}; medians: {ours:.1f} and {theirs:.1f}")


def main():
    benches = {"round": bench_round, "torch": bench_torch, "simulate": bench_simulate}
    for name in sys.argv[1:] or benches:
        with tempfile.TemporaryDirectory(prefix="tributary-", dir="/dev/shm") as folder:
            federation = Federation(folder)
            server = federation.server("--model", "synthetic:1")
            for client in "ab":
                federation.join(client)
            server.kill()
            benches[name](federation)


if __name__ == "__main__":
    main()
