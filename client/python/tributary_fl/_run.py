# SPDX-License-Identifier: Apache-2.0
"""run(): takes part in a federation with a trainer."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import shutil
import signal
import subprocess
import socket
import sys
import tempfile
import threading
import time
from typing import IO, Any, Callable, Iterator, Sequence, Union

from . import _channel, _programs
from ._trainer import Error, Trainer

SOCKET_PATH_BYTES_MAX = 107  # Linux, sun_path.
CONNECT_PAUSE_S = 0.02
PR_SET_PDEATHSIG = 1  # Of <sys/prctl.h>.
READ_WAIT_S = 5.0  # For the last lines of the log.
LOG_LINES_KEPT = 50

Path = Union[str, "os.PathLike[str]"]


def run(
    trainer: Trainer,
    join: str | os.PathLike[str] | None = None,
    *,
    state: Path = "fl-client-state",
    name: str | None = None,
    evaluate_only: bool = False,
    stay: bool = False,
    threads: int | None = None,
    max_parameters: int | None = None,
    log: Path | None = None,
    options: Sequence[str] = (),
) -> None:
    """Takes part in a federation until the run is over.

    Starts fl-client, which speaks with the server, and trains for it in this thread. In a program
    that fl-client itself has started as its `--trainer`, it serves that fl-client, and only `state`
    of the arguments counts. In a program that torchrun has started, rank 0 does all this, and the
    other ranks train with it until the run is over (`tributary_fl.torch.Trainer`).

    trainer: the model and its data.
    join: the token that `fl-server enroll` has printed, or a path object of the file that has it.
        Not needed, and ignored, once this client has joined.
    state: the folder for this client's key, certificate and unsent update.
    name: the name to join with, if not the token's.
    evaluate_only: measure every version of the model, and train none.
    stay: when a run is over, wait for the next one.
    threads: with how many threads fl-client codes updates; by default one per core.
    max_parameters: refuse models with more parameters.
    log: a file that fl-client's log is appended to; by default it goes to standard error.
    options: more flags of fl-client, as in ["--verbose"].

    Raises Error, with the last error in its log, when fl-client fails. Ctrl-C ends fl-client in
    good order, a second one at once; then KeyboardInterrupt is raised."""
    trainer.state_folder = os.fspath(state)
    if trainer.is_follower:
        trainer.follow()
        return
    if int(os.environ.get("RANK", "0")) > 0 and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise Error(
            "this program is a rank of several, but its trainer is not: use a Trainer of"
            " tributary_fl.torch, and call torch.distributed.init_process_group() before you make it"
        )
    path = os.environ.get("TRIBUTARY_SOCKET")
    if path:
        _channel.serve_command(trainer, path)
        trainer.finish()
        return
    command = [_programs.find("fl-client"), "--state", os.fspath(state)]
    command += ["--name", name] if name is not None else []
    command += ["--evaluate-only"] if evaluate_only else []
    command += ["--stay"] if stay else []
    command += ["--threads", str(threads)] if threads is not None else []
    command += ["--max-parameters", str(max_parameters)] if max_parameters is not None else []
    command += list(options)
    token = _token(join)
    with private_folder() as folder, log_file(log) as sink:
        client = _Client(command, token, os.path.join(folder, "socket"), sink)
        try:
            client.serve(trainer)
            trainer.finish()
        finally:
            client.close()


def _token(join: str | os.PathLike[str] | None) -> str | None:
    if join is None or isinstance(join, str):
        return join
    with open(join, encoding="utf-8") as file:
        return file.read().strip()


@contextlib.contextmanager
def private_folder() -> Iterator[str]:
    parent = None
    if len(os.fsencode(tempfile.gettempdir())) > SOCKET_PATH_BYTES_MAX - 40:
        parent = "/tmp"
    folder = tempfile.mkdtemp(prefix="tributary-", dir=parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def log_file(path: Path | None) -> Iterator[IO[str]]:
    if path is None:
        yield sys.stderr
    else:
        with open(path, "a", encoding="utf-8") as file:
            yield file


_libc = ctypes.CDLL(None)


def end_with_parent(parent: int) -> None:
    """In a process that `parent` has just forked: lets the kernel kill it together with its parent.
    fl-client would wait for another trainer else, and keep the state folder from the next start of
    this program. It loses nothing by that."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # It has ended before the line above.
        os._exit(1)


class Interrupts:
    """Ctrl-C goes to a child of this process: the first one asks it to stop. The third one is as
    without this, in case that the child does not end."""

    def __init__(self, child: subprocess.Popen[Any], also: Callable[[], None] = lambda: None):
        self.count = 0
        self._child = child
        self._also = also

    @contextlib.contextmanager
    def forwarded(self) -> Iterator[None]:
        try:
            before = signal.signal(signal.SIGINT, self._forward)
        except ValueError:  # Not the main thread, which alone gets signals.
            yield
            return
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _forward(self, number: int, frame: Any) -> None:
        self.count += 1
        if self.count > 2:
            raise KeyboardInterrupt
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(signal.SIGINT)
        self._also()


class _Client:
    """fl-client as a child of this process, which it does not start a trainer for."""

    def __init__(self, command: list[str], token: str | None, socket_path: str, sink: IO[str]):
        self._socket_path = socket_path
        self._sink = sink
        self._lines: list[str] = []
        self._channel: _channel.Channel | None = None
        command = [*command, "--trainer-socket", socket_path]
        # Not on the command line, which every user of this machine can read.
        command += ["--join", "-"] if token is not None else []
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if token is not None else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # A terminal's Ctrl-C comes to this process only.
            preexec_fn=functools.partial(end_with_parent, os.getpid()),
        )
        self._interrupts = Interrupts(self._process, self._stop_channel)
        self._reader = threading.Thread(target=self._copy_log, daemon=True)
        self._reader.start()
        if self._process.stdin is not None and token is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(token.encode() + b"\n")
                self._process.stdin.close()

    def serve(self, trainer: Trainer) -> None:
        failure: BaseException | None = None
        with self._interrupts.forwarded():
            # Again where fl-client has lost its patience with the trainer and waits for another.
            while self._interrupts.count == 0 and (sock := self._connect()) is not None:
                self._channel = _channel.Channel(sock)
                if self._interrupts.count:
                    self._channel.stop()
                self._channel.serve(trainer)
                failure = self._channel.failure or failure
                if self._channel.said_bye:
                    break
            code = self._process.wait()
        self._reader.join(READ_WAIT_S)
        if self._interrupts.count:
            raise KeyboardInterrupt
        if code != 0:
            raise Error(_programs.last_error("fl-client", self._lines, code)) from failure

    def _stop_channel(self) -> None:
        if self._channel is not None:
            self._channel.stop()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._reader.join(READ_WAIT_S)
        if self._process.stderr is not None and not self._reader.is_alive():
            self._process.stderr.close()

    def _connect(self) -> socket.socket | None:
        """The socket, once fl-client listens; None if it has ended, or is to end."""
        while self._process.poll() is None and self._interrupts.count == 0:
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                return _channel.connect(self._socket_path)
            time.sleep(CONNECT_PAUSE_S)
        return None

    def _copy_log(self) -> None:
        assert self._process.stderr is not None
        for raw in self._process.stderr:
            line = raw.decode(errors="replace")
            self._lines = [*self._lines[-LOG_LINES_KEPT:], line.rstrip("\n")]
            _channel.say(line, self._sink)  # fl-client would wait for a reader.
