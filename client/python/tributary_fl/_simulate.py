# SPDX-License-Identifier: Apache-2.0
"""simulate(): a whole federation on this machine, with trainers of the user's.

fl-sim is a child of this process, and so are its workers. These are made by fork, so a factory may
be any function: a lambda, or one in a notebook. This process starts no thread of its own before."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import os
import select
import signal
import subprocess
import sys
import time
import traceback
import warnings
from typing import IO, NoReturn, Sequence

from . import _bar, _channel, _programs
from ._history import History, history
from ._players import Evaluator, Players, TrainerFactory
from ._run import (
    CONNECT_PAUSE_S, LOG_LINES_KEPT, Interrupts, Path, end_with_parent, log_file, private_folder,
)  # fmt: skip
from ._trainer import Error

LOOK_S = 0.1  # Between two looks at the workers.
NEW_WORKER_PAUSE_S = 0.5  # Before a worker that has ended is replaced.
END_WAIT_S = 12.0  # For workers to end, after fl-sim. A little more than fl-sim waits for them.
MEMORY_KEPT = 256 << 20  # Bytes that a worker has freed, at most.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # Of <malloc.h>; the latter is at most 32 MiB.


def simulate(
    trainer_factory: TrainerFactory,
    clients: int = 100,
    *,
    rounds: int = 10,
    workers: int | None = None,
    state: Path = "fl-sim-state",
    evaluator: Evaluator | None = None,
    log: Path | None = None,
    options: Sequence[str] = (),
) -> History:
    """Runs a whole federation on this machine, with fl-sim: the real server and clients, with your
    trainers. Returns what history() reads of `state`; the newest run is this one.

    trainer_factory: makes the trainer of a client, of its number 0, 1, ... It is called when the
        client is to work, again and again: a worker keeps only the trainers that it used last. So
        let it do little, and keep in `trainer.state_folder` what must last from round to round.
    clients: how many there are.
    rounds: how many rounds to run.
    workers: processes that train side by side, with one thread each; None: one for each core that
        this process may use.
    state: the folder for the history and the checkpoints.
    evaluator: a trainer with eval_data, or a function that makes one, which measures every version.
    log: a file that fl-sim's log is appended to; by default it goes to standard error.
    options: flags of fl-sim, as in ["--codec", "ecuq:1+ef", "--lr", "0.1"].

    The workers are forks of this process. They can use what it has loaded, but not a GPU that it
    has used before. The resulting model does not depend on the number of workers.

    In a program that fl-sim has started as its --trainer, it serves that fl-sim, and ends the
    program. Raises Error, with the last error of fl-sim, when that fails. Ctrl-C ends everything in
    good order, a second one at once; then KeyboardInterrupt is raised."""
    players = Players(trainer_factory, evaluator)
    path = os.environ.get("TRIBUTARY_SOCKET")
    if path:
        _prepare_worker()
        _channel.serve_command(players, path)
        sys.exit(0)
    if importlib.util.find_spec("pandas") is None:
        raise ImportError("simulate() returns pandas frames: install pandas")
    command = [_programs.find("fl-sim"), "--state", os.fspath(state)]
    command += ["--clients", str(clients), "--rounds", str(rounds)]
    if workers:
        command += ["--threads", str(workers)]
    with private_folder() as folder, log_file(log) as sink:
        socket_path = os.path.join(folder, "socket")
        command += ["--trainer-socket", socket_path, *options]
        simulation = _Simulation(command, socket_path, players, sink)
        try:
            simulation.run()
        finally:
            simulation.close()
    return history(state)


class _Simulation:
    """fl-sim and its workers as children of this process."""

    def __init__(self, command: list[str], socket_path: str, players: Players, sink: IO[str]):
        self._socket_path = socket_path
        self._players = players
        self._sink = sink
        self._lines: list[str] = []
        self._rest = b""
        self._pids: dict[int, int] = {}  # By the worker's number.
        self._due: dict[int, float] = {}  # When to start those that don't run.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # A terminal's Ctrl-C comes to this process.
            preexec_fn=functools.partial(end_with_parent, os.getpid()),
        )
        self._interrupts = Interrupts(self._process)

    def run(self) -> None:
        with self._interrupts.forwarded():
            self._tend_workers()
            while self._copy_log():
                self._tend_workers()
            code = self._process.wait()
            self._await_workers()
        if self._interrupts.count:
            raise KeyboardInterrupt
        if code != 0:
            raise Error(_programs.last_error("fl-sim", self._lines, code))

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._kill_workers()
        self._await_workers()

    def _copy_log(self) -> bool:
        """Copies what fl-sim has printed, and waits a little for it. False: it has ended."""
        assert self._process.stdout is not None
        file = self._process.stdout.fileno()
        if not select.select([file], [], [], LOOK_S)[0]:
            return True
        got = os.read(file, 1 << 16)
        *lines, self._rest = (self._rest + got).split(b"\n")
        if not got and self._rest:
            lines.append(self._rest)
        for raw in lines:
            line = raw.decode(errors="replace")
            self._lines = [*self._lines[-LOG_LINES_KEPT:], line]
            _channel.say(line + "\n", self._sink)
        return bool(got)

    def _tend_workers(self) -> None:
        """Starts the workers that don't run, those that have just ended after a pause."""
        self._reap()
        self._find_sockets()
        now = time.monotonic()
        for number in [number for number, due in self._due.items() if due <= now]:
            del self._due[number]
            self._pids[number] = self._fork(f"{self._socket_path}.{number}")

    def _find_sockets(self) -> None:
        """fl-sim, which knows how many cores there are for it, makes a socket for each worker."""
        folder, name = os.path.split(self._socket_path)
        for entry in os.listdir(folder):
            number = entry.removeprefix(f"{name}.")
            if number.isdecimal() and int(number) not in self._pids:
                self._due.setdefault(int(number), 0.0)

    def _fork(self, path: str) -> int:
        parent = os.getpid()
        _channel.say("", self._sink)
        _channel.flush()
        with warnings.catch_warnings():
            # Threads of a notebook or of a library are idle while this thread is here.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _worker(path, self._players, parent)
        return pid

    def _reap(self) -> None:
        for number, pid in list(self._pids.items()):
            with contextlib.suppress(ChildProcessError):  # Somebody else has waited for it.
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            del self._pids[number]
            self._due[number] = time.monotonic() + NEW_WORKER_PAUSE_S

    def _await_workers(self) -> None:
        """Waits for all of them, and kills those that do not end."""
        until = time.monotonic() + END_WAIT_S
        self._reap()
        while self._pids:
            if time.monotonic() > until or self._interrupts.count > 1:
                self._kill_workers()
            time.sleep(CONNECT_PAUSE_S)
            self._reap()

    def _kill_workers(self) -> None:
        for pid in self._pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _worker(path: str, players: Players, parent: int) -> NoReturn:
    """The whole life of a worker. Nothing of the process that it is a fork of may run in it, such
    as what that does at its end."""
    code = 1
    try:
        end_with_parent(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # fl-sim says when to end.
        _prepare_worker()
        while os.getppid() == parent:
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                channel = _channel.Channel(_channel.connect(path), on_lost=lambda: os._exit(1))
                channel.serve(players)
                code = 0
                break
            time.sleep(CONNECT_PAUSE_S)
    except BaseException:
        _channel.say(traceback.format_exc())
    finally:
        _channel.flush()
        os._exit(code)


def _prepare_worker() -> None:
    """One thread for each worker. Threads of the process that it is a fork of are not there any
    more, and a library that asked them to work would wait for ever. And the memory of a batch is
    kept for the next one: to get it anew for each takes up to a third of a small model's
    time."""
    with contextlib.suppress(AttributeError):  # Not of every C library.
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, MEMORY_KEPT // 8)
        libc.mallopt(M_TRIM_THRESHOLD, MEMORY_KEPT)
    _bar.is_on = False
    os.environ["OMP_NUM_THREADS"] = "1"  # For libraries that are loaded later.
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    with contextlib.suppress(ImportError):
        importlib.import_module("threadpoolctl").threadpool_limits(1)
