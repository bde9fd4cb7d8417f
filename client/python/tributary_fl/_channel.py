# SPDX-License-Identifier: Apache-2.0
"""The conversation with fl-client over its Unix socket: one JSON object on each line.

A thread reads, so that a request can be cancelled, and the end of fl-client be noticed, while the
main thread trains. The main thread answers."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import socket
import sys
import threading
import traceback
from typing import IO, Any, Callable

from ._players import Players
from ._trainer import Cancelled, Diverged, Error, Task, Trainer

LINE_BYTES_MAX = 64 << 20
REASON_LENGTH_MAX = 2000


class Channel:
    """One connection. `on_lost` is called in the reading thread when the socket closes without a
    `bye` before it."""

    def __init__(self, sock: socket.socket, on_lost: Callable[[], None] = lambda: None):
        self._socket = sock
        self._on_lost = on_lost
        self._sending = threading.Lock()
        self._requests: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._cancelled: set[int] = set()
        self._is_over = threading.Event()
        self._failure: BaseException | None = None
        self._said_bye = False
        self._refusal = ""
        threading.Thread(target=self._read, name="tributary-channel", daemon=True).start()

    def stop(self) -> None:
        """Cancels the request that is worked on, and ends serve() after it."""
        self._is_over.set()
        self._requests.put(None)

    @property
    def said_bye(self) -> bool:
        """Whether fl-client has ended the conversation in good order."""
        return self._said_bye

    @property
    def refusal(self) -> str:
        """Why fl-client has refused this trainer for good, if it has."""
        return self._refusal

    @property
    def failure(self) -> BaseException | None:
        """The last exception that a request has ended with."""
        return self._failure

    def serve(self, trainer: Trainer) -> None:
        """Says hello, then answers requests until `bye` or the end of the connection."""
        try:
            hello = _line(trainer.hello().message())
        except Exception as error:
            self._send({"type": "error", "reason": _reason(error)})
            raise
        if not self._send_line(hello):
            return
        while True:
            request = self._requests.get()
            if request is None or self._is_over.is_set():
                return
            self._send_line(self._answer(trainer, request))

    def _read(self) -> None:
        try:
            self._read_lines()
        except Exception as error:
            say(f"tributary_fl: {error}\n")
        finally:
            self._end()

    def _end(self) -> None:
        """Nothing that can fail stands before this, so that the main thread never waits for ever."""
        if not self._is_over.is_set():
            self._on_lost()
        self.stop()
        with contextlib.suppress(OSError):  # fl-client waits for this.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read_lines(self) -> None:
        with self._socket.makefile("rb") as file:
            while True:
                line = file.readline(LINE_BYTES_MAX + 1)
                if len(line) > LINE_BYTES_MAX:
                    raise ValueError(f"fl-client sent a line of more than {LINE_BYTES_MAX} bytes")
                if not line.endswith(b"\n"):
                    return
                message = json.loads(line)
                if message.get("type") == "cancel":
                    self._cancelled.add(message["id"])
                elif message.get("type") == "bye":
                    self._refusal = str(message.get("reason", ""))
                    self._said_bye = True
                    self.stop()
                    return
                else:
                    self._requests.put(message)

    def _send(self, message: dict[str, Any]) -> bool:
        return self._send_line(_line(message))

    def _send_line(self, line: bytes) -> bool:
        """False: nobody is there any more. The reading thread notices that, too."""
        try:
            with self._sending:
                self._socket.sendall(line)
        except OSError:
            return False
        return True

    def _answer(self, trainer: Trainer, request: dict[str, Any]) -> bytes:
        number = request.get("id")

        def is_cancelled() -> bool:
            return number in self._cancelled or self._is_over.is_set()

        def fail(reason: str, diverged: bool = False) -> bytes:
            return _line({"type": "error", "id": number, "reason": reason, "diverged": diverged})

        try:
            task = Task(request, is_cancelled, self._send)
            task.check()
            return _line({"type": "done", "id": number, **_work(trainer, task)})
        except Cancelled:
            return fail("cancelled")
        except Diverged as error:
            return fail(str(error), diverged=True)
        except Exception as error:
            self._failure = error
            say(traceback.format_exc())
            return fail(_reason(error))
        finally:
            self._cancelled.discard(number or 0)
            flush()


def _line(message: dict[str, Any]) -> bytes:
    """A message as fl-client reads it."""
    text = json.dumps(message, ensure_ascii=False, allow_nan=False)
    line = printable(text, escape="\\\\").encode() + b"\n"
    if len(line) > LINE_BYTES_MAX:
        raise ValueError(f"a message of {len(line)} bytes is too long for fl-client")
    return line


def printable(text: str, escape: str = "\\") -> str:
    """The text with escapes for halves of characters (surrogates), which can't be written in UTF-8.
    Python has them in names of files that are not UTF-8: the byte 0xfc of one becomes \\xfc.

    escape: how a backslash is written where the text goes to."""

    def escaped(found: re.Match[str]) -> str:
        code = ord(found[0])
        is_byte = 0xDC80 <= code <= 0xDCFF  # As PEP 383 has it.
        return escape + (f"x{code - 0xDC00:02x}" if is_byte else f"u{code:04x}")

    return re.sub("[\ud800-\udfff]", escaped, text)


def say(text: str, sink: IO[str] | None = None) -> None:
    """Writes to a log, by default standard error. Where nobody reads that any more, or its disk is
    full, the text is lost and the work goes on."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        file = sys.stderr if sink is None else sink
        encoding = getattr(file, "encoding", None) or "utf-8"  # Not every notebook's has one.
        file.write(printable(text).encode(encoding, "backslashreplace").decode(encoding))
        file.flush()


def flush() -> None:
    for file in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # Closed, or there is none.
            file.flush()


def _reason(error: BaseException) -> str:
    """An exception in a few words."""
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    return text[:REASON_LENGTH_MAX]


def _work(trainer: Trainer, task: Task) -> dict[str, Any]:
    """The members of `done`."""
    if task.kind == "train":
        return trainer.on_train(task).message()
    if task.kind == "client" and isinstance(trainer, Players):
        return trainer.on_client(task)
    if task.kind == "evaluate":
        return trainer.on_evaluate(task).message()
    if task.kind == "gradient":
        trainer.on_gradient(task)
    elif task.kind == "initial":
        trainer.on_initial(task)
    else:
        raise ValueError(f"this version of tributary_fl does not know the request '{task.kind}'")
    return {}


def connect(path: str) -> socket.socket:
    """Connects to fl-client's socket."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    return sock


def serve_command(trainer: Trainer, path: str) -> None:
    """Serves an fl-client that has started this process as its --trainer. When fl-client ends
    without a word, this process ends at once, whatever it is doing. Error: it refuses the trainer."""
    channel = Channel(connect(path), on_lost=lambda: os._exit(1))
    channel.serve(trainer)
    if channel.refusal:
        raise Error(channel.refusal)
