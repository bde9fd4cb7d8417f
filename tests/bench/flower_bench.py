#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The job of docs/guide/from-flower.md by Tributary and by Flower, in turn: seconds from the start of
the first program to the end of the last, bytes over loopback, the peak of all programs' memory, and
the accuracy on the clients' held-out examples after the last round. The federations run in a network
namespace of their own.

    python3 -m venv --system-site-packages V && V/bin/pip install flwr      # and PyTorch, if it is not there
    ./dev bench flower V/bin/python

Flower runs by start_server and start_client, without TLS: its quickest way. Tributary's clients enrol
and use TLS, as always."""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from places import SOURCE
import document_reader
from federation import BIN, free_port, wait_until
from process_table import memory_of

PAGE = SOURCE / "docs/guide/from-flower.md"
ROUNDS = 20
TURNS = 3
ENTERED = "TRIBUTARY_FLOWER_BENCH"

# The page's model and data, and Flower's half of the page, spelled out.
FLOWER = f"""
import sys, warnings, logging, collections, torch
warnings.filterwarnings("ignore")
import flwr
from train import make_model, read_data

def get_weights(net):
    return [value.cpu().numpy() for value in net.state_dict().values()]

def set_weights(net, parameters):
    names = net.state_dict().keys()
    net.load_state_dict({{n: torch.tensor(v) for n, v in zip(names, parameters)}})

class Client(flwr.client.NumPyClient):
    def __init__(self, seed):
        (self.x, self.y), (self.test_x, self.test_y) = read_data(seed)
        self.net = make_model()

    def fit(self, parameters, config):
        set_weights(self.net, parameters)
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        for batch in torch.randperm(len(self.x)).split(32):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self.net(self.x[batch]), self.y[batch]).backward()
            optimizer.step()
        return get_weights(self.net), len(self.x), {{}}

    def evaluate(self, parameters, config):
        set_weights(self.net, parameters)
        with torch.no_grad():
            out = self.net(self.test_x)
        loss = torch.nn.functional.cross_entropy(out, self.test_y).item()
        right = (out.argmax(1) == self.test_y).float().mean().item()
        return loss, len(self.test_x), {{"accuracy": right}}

address, who = sys.argv[1], sys.argv[2]
if who == "server":
    torch.manual_seed(1)
    strategy = flwr.server.strategy.FedAvg(
        min_fit_clients=2, min_evaluate_clients=2, min_available_clients=2,
        initial_parameters=flwr.common.ndarrays_to_parameters(get_weights(make_model())),
        evaluate_metrics_aggregation_fn=lambda all: {{
            "accuracy": sum(n * m["accuracy"] for n, m in all) / sum(n for n, _ in all)}})
    history = flwr.server.start_server(
        server_address=address, strategy=strategy,
        config=flwr.server.ServerConfig(num_rounds={ROUNDS}))
    print("accuracy", history.metrics_distributed["accuracy"][-1][1])
else:
    flwr.client.start_client(server_address=address, client=Client(int(who)).to_client())
"""


def loopback_bytes():
    line = next(line for line in open("/proc/net/dev") if line.strip().startswith("lo:"))
    return int(line.split()[1])


def memory_of_all():
    """The memory of the programs that this one has started. Pages that they share count once
    for each of them."""
    total = 0
    for status in pathlib.Path("/proc").glob("[0-9]*/status"):
        pid = int(status.parent.name)
        if pid != os.getpid():
            total += memory_of(pid, "VmRSS")
    return total


class Measured:
    """Measures the work inside of a `with`."""

    def __enter__(self):
        self.ends, self.peak = threading.Event(), 0
        self.watcher = threading.Thread(target=self.watch)
        self.bytes, self.begin = loopback_bytes(), time.monotonic()
        self.watcher.start()
        return self

    def watch(self):
        while not self.ends.wait(0.05):
            self.peak = max(self.peak, memory_of_all())

    def __exit__(self, *_):
        self.seconds, self.bytes = time.monotonic() - self.begin, loopback_bytes() - self.bytes
        self.ends.set()
        self.watcher.join()


def start(python, *command, folder, **more):
    """The programs of both find this Python, our programs and our package."""
    path = f"{pathlib.Path(python).parent}:{BIN}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(SOURCE / "client/python")}
    return subprocess.Popen([str(word) for word in command], cwd=folder, env=environment, **more)


def finish(programs):
    for program in programs:
        if program.wait(timeout=600):
            sys.exit(f"{' '.join(program.args)} failed with {program.returncode}")


def by_flower(python, folder):
    (folder / "job.py").write_text(FLOWER)
    address = f"127.0.0.1:{free_port()}"
    with open(folder / "log", "w") as log, Measured() as measured:
        job = (python, python, "job.py", address)
        server = start(*job, "server", folder=folder, stdout=subprocess.PIPE, stderr=log)
        clients = [start(*job, seed, folder=folder, stdout=log, stderr=log) for seed in (1, 2)]
        said, _ = server.communicate(timeout=600)
        finish([server, *clients])
    return measured, float(said.split()[-1])


def by_tributary(python, folder, blocks):
    """The page's commands, with another port, and without the page's look at the history."""
    ready = folder / "ready"
    flags = f"--listen 127.0.0.1:{free_port()} --admin off --ready-file {ready}"
    begin, join = [block.text for block in blocks if block.language == "sh"]
    first, rest = begin.split("fl-server", 1)
    shell = (python, "sh", "-ec")
    finish([start(*shell, first, folder=folder)])
    command = f"exec fl-server {flags} {rest.split('2>')[0]}"
    with open(folder / "server.log", "w") as log, Measured() as measured:
        server = start(*shell, command, folder=folder, stdout=log, stderr=log)
        wait_until("the server is ready", ready.exists)
        clients = join.split("wait $server")[0] + "\nwait"
        finish([start(*shell, clients, folder=folder), server])
    history = [BIN / "fl-server", "history", "--json"]
    asked = subprocess.run(history, cwd=folder, capture_output=True, text=True, check=True)
    return measured, json.loads(asked.stdout)[-1]["eval_accuracy"]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    python = str(pathlib.Path(sys.argv[1]).absolute())
    if os.environ.get(ENTERED) != "1":
        os.environ[ENTERED] = "1"
        own = "--user --map-root-user --net --pid --fork --kill-child --mount-proc"
        os.execvp("unshare", ["unshare", *own.split(), sys.executable, *sys.argv])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    blocks = document_reader.blocks_of(PAGE.read_text())
    program = next(block.text for block in blocks if block.language == "python")
    results = {"Tributary": [], "Flower": []}
    with tempfile.TemporaryDirectory() as name:
        for turn in range(TURNS):
            for who in results:
                folder = pathlib.Path(name) / f"{who}-{turn}"
                folder.mkdir()
                (folder / "train.py").write_text(program)
                is_ours = who == "Tributary"
                results[who].append(
                    by_tributary(python, folder, blocks) if is_ours else by_flower(python, folder)
                )
    print(f"{ROUNDS} rounds with two clients; medians of {TURNS} turns\n")
    print(f"{'':12}{'seconds':>10}{'kB':>10}{'peak MB':>10}{'accuracy':>10}")
    for who, turns in results.items():
        seconds, sent, peak = (
            statistics.median(getattr(measured, name) for measured, _ in turns)
            for name in ("seconds", "bytes", "peak")
        )
        accuracy = statistics.median(accuracy for _, accuracy in turns)
        print(f"{who:12}{seconds:10.2f}{sent / 1e3:10.0f}{peak / 1e6:10.0f}{100 * accuracy:9.1f} %")


if __name__ == "__main__":
    main()
