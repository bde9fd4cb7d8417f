"""What the process tests share: the real programs in folders of their own, waits with an end, and
the history as any user reads it.

FL_BIN names the folder of fl-server and fl-client, FL_SOURCE the repository. Each test gets a
temporary folder, removed at its end; every program that a test starts dies with it.
"""

import asyncio
import base64
import concurrent.futures
import contextlib
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import tempfile
import time
import unittest
import weakref
import zlib

BIN = pathlib.Path(os.environ["FL_BIN"])
SOURCE = pathlib.Path(os.environ.get("FL_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
WAIT_MAX_S = (
    120  # A program that takes longer for anything hangs. Sanitizers and busy machines take theirs.
)
PARALLEL = 4  # Federations at the same time.
DISK_STEPS_MAX = 500  # A walk over them that is longer does not end.
programs = weakref.WeakSet()  # That the test has started.


def wait_until(what, condition, limit_s=WAIT_MAX_S):
    """What `condition` returns once that is true. When late, AssertionError with `what` and what the
    running programs have said last."""
    end = time.monotonic() + limit_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            said = "\n".join(str(program) for program in programs if program.running())
            raise AssertionError(f"after {limit_s} s still not: {what}\n{said}")
        time.sleep(0.01)


def memory_folder(bytes_min=512 << 20):
    """A folder in memory that has room for that much; None, so the usual place, without one. Enough
    for tests that only kill programs: what is written outlives them, synced or not, and a disk that
    syncs takes half of such a test's time."""
    folder = "/dev/shm"
    if os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= bytes_min:
        return folder
    return None


RESERVED = []  # A name in the kernel for each port, to the end of this process.


def free_port():
    """Below the range from which the kernel takes the ports of outgoing connections: a client that
    tries to connect to a dead server must not be given the server's own port. Nor may a test that
    runs beside this one."""
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        reserved = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError), socket.socket() as probe:
            reserved.bind(f"\0tributary-port-{port}")
            probe.bind(("127.0.0.1", port))
            RESERVED.append(reserved)
            return port
        reserved.close()


def last_of_each(flags):
    """Without the earlier values of flags that are given twice, which the programs refuse."""
    kept = []
    for flag in map(str, flags):
        if flag.startswith("--") and flag in kept:
            del kept[kept.index(flag) : kept.index(flag) + 2]
        kept.append(flag)
    return kept


def forge(token, **changes):
    """The token with other fields and a checksum that fits."""
    body = token.removeprefix("flj1.")
    fields = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))[:-4]
    head, fingerprint, token_id, secret = (
        fields[:-56],
        fields[-56:-24],
        fields[-24:-16],
        fields[-16:],
    )
    fields = (
        head + changes.get("fingerprint", fingerprint) + token_id + changes.get("secret", secret)
    )
    fields += struct.pack("<I", zlib.crc32(fields))
    return "flj1." + base64.urlsafe_b64encode(fields).rstrip(b"=").decode()


class Program:
    """One running program. stdout and stderr go to files, as nobody reads along."""

    def __init__(self, arguments, log, failpoint=""):
        self.arguments = [str(argument) for argument in arguments]
        self.out, self.err = log.with_suffix(".out"), log.with_suffix(".err")
        environment = {key: value for key, value in os.environ.items() if key != "FL_FAILPOINT"}
        if failpoint:
            environment["FL_FAILPOINT"] = failpoint
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(self.arguments, stdout=out, stderr=err, env=environment)
        programs.add(self)

    @property
    def pid(self):
        return self.process.pid

    def running(self):
        return self.process.poll() is None

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, limit_s=WAIT_MAX_S):
        """The exit code; -9 when it was killed."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"after {limit_s} s still running: {self}") from None

    def kill(self):
        if self.running():
            self.process.kill()
        self.process.wait()

    def stdout(self):
        return self.out.read_text(errors="replace")

    def stderr(self):
        return self.err.read_text(errors="replace")

    def wait_for(self, text, limit_s=WAIT_MAX_S):
        """Until it has said `text` on stderr."""
        with contextlib.suppress(AssertionError):
            wait_until(text, lambda: text in self.stderr() or not self.running(), limit_s)
        if text not in self.stderr():
            raise AssertionError(f"it never said '{text}': {self}")

    def __str__(self):
        tail = "\n    ".join(self.stderr().splitlines()[-30:])
        return f"{' '.join(self.arguments)} (exit {self.process.poll()})\n    {tail}"


class Federation:
    """A server's state and its clients' in one folder. The server listens on one port through all
    its lives, so that its clients find it again."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.state = self.folder / "server"
        self.port = free_port()
        self.programs = []
        self.numbers = itertools.count()  # Of the logs. next() is safe in several threads.

    def start(self, name, arguments, failpoint=""):
        program = Program(arguments, self.folder / f"{next(self.numbers):04}-{name}", failpoint)
        self.programs.append(program)
        return program

    def server(self, *flags, failpoint="", ready=True):
        """A serving fl-server; with `ready` it listens already. A new run's codec is `none` unless
        said; one that goes on has the codec that it had."""
        ready_file = self.folder / "ready.json"
        ready_file.unlink(missing_ok=True)
        places = ["--state", self.state, "--listen", f"127.0.0.1:{self.port}", "--admin", "off"]
        if "--new-run" in flags or not (self.state / "history.sqlite").exists():
            flags = ("--codec", "none", *flags)
        flags = last_of_each([*places, "--ready-file", ready_file, *flags])
        program = self.start("server", [BIN / "fl-server", *flags], failpoint)
        if ready:
            self.await_ready(program)
            if not ready_file.exists():
                raise AssertionError(f"the server ended at its start: {program}")
            program.ready = json.loads(ready_file.read_text())
        return program

    def await_ready(self, server):
        """Until it listens, or has ended."""
        ready_file = self.folder / "ready.json"
        wait_until("server is ready", lambda: ready_file.exists() or not server.running())

    def server_or_killed(self, *flags, failpoint):
        """A serving fl-server that is ready, or was killed as it started."""
        server = self.server(*flags, failpoint=failpoint, ready=False)
        self.await_ready(server)
        return server

    def client(self, name, *flags, failpoint=""):
        return self.start(
            f"client-{name}", [BIN / "fl-client", "--state", self.folder / name, *flags], failpoint
        )

    def command(self, *arguments):
        """(exit code, stdout, stderr) of a program that ends by itself: "fl-server", "history"."""
        program = self.start("command", [BIN / arguments[0], *arguments[1:]])
        code = program.wait(30)
        return code, program.stdout(), program.stderr()

    def server_command(self, *arguments):
        return self.command("fl-server", "--state", self.state, *arguments)

    def token(self, name, *flags):
        code, out, err = self.server_command("enroll", "--name", name, *flags)
        if code != 0:
            raise AssertionError(f"enroll --name {name} failed: {err}")
        return out.strip()

    def join(self, name):
        code, _, err = self.command(
            "fl-client", "join", self.token(name), "--state", self.folder / name
        )
        if code != 0:
            raise AssertionError(f"{name} could not join: {err}")

    def query(self, sql, *parameters):
        """Rows of the history, read beside the running server."""
        with contextlib.closing(
            sqlite3.connect(f"file:{self.state}/history.sqlite?mode=ro", uri=True, timeout=10)
        ) as db:
            return db.execute(sql, parameters).fetchall()

    def rounds_done(self):
        return self.query(
            "SELECT count(*) FROM round_summary WHERE run_id = (SELECT max(id) FROM run)"
        )[0][0]

    def digests(self):
        """Of every model version of the newest run, in order."""
        rows = self.query(
            "SELECT digest FROM checkpoint WHERE run_id = (SELECT max(id) FROM run)"
            " ORDER BY version"
        )
        return [digest for (digest,) in rows]

    @property
    def checkpoints(self):
        """The folder of the newest run's checkpoints."""
        (run,) = self.query("SELECT max(id) FROM run")[0]
        return self.state / "checkpoints" / (f"run-{run}" if run > 1 else "")

    def copy(self, folder):
        """The same server and clients elsewhere, on another port. Nothing of this one runs."""
        twin = Federation(folder)
        for part in self.folder.iterdir():
            if part.is_dir():
                shutil.copytree(part, twin.folder / part.name)
        for identity in twin.folder.glob("*/identity/identity.json"):
            identity.write_text(json.dumps({"server": f"127.0.0.1:{twin.port}"}))
        return twin

    def close(self):
        for program in self.programs:
            program.kill()


class FederationTest(unittest.TestCase):
    """A test class in which make() gives federations whose clients have joined."""

    names = ("a", "b", "c")
    place = None  # Of its folders; None: where temporary files lie.
    longMessage = True

    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="tributary-", dir=cls.place))
        cls.addClassCleanup(shutil.rmtree, cls.root, ignore_errors=True)
        # Enrolment costs a second, so it is done once and copied.
        cls.template = Federation(cls.root / "template")
        cls.addClassCleanup(cls.template.close)
        server = cls.template.server("--model", "synthetic:1")
        for name in cls.names:
            cls.template.join(name)
        server.signal(signal.SIGTERM)
        if server.wait() != 0:
            raise AssertionError(f"the server did not stop cleanly: {server}")

    def make(self, name="federation"):
        federation = self.template.copy(self.root / self.id() / name)
        self.addCleanup(federation.close)
        return federation

    def walk_disk_steps(self, steps_min, attempt):
        """Calls attempt(failpoint, name) for what changes the disk first, second, ... before and
        after each, until it says with False that the program was not killed there."""
        reached, step = True, 1
        with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
            while reached and step < DISK_STEPS_MAX:
                steps = range(step, step + PARALLEL)
                calls = [pool.submit(attempt, f"disk.step:{n}", f"step-{n}") for n in steps]
                outcomes = []
                for n, call in zip(steps, calls):
                    with self.subTest(step=n):
                        outcomes.append(call.result())
                if len(outcomes) < PARALLEL:
                    return  # A failure is enough.
                reached = all(outcomes)
                step += PARALLEL
        self.assertTrue(steps_min < step < DISK_STEPS_MAX, f"walked to step {step} on the disk")
        print(f"{self.id().rpartition('.')[2]}: killed at about {step} steps on the disk")

    def expect_exit(self, program, code=0, limit_s=WAIT_MAX_S):
        self.assertEqual(program.wait(limit_s), code, str(program))


class AsyncFederationTest(FederationTest, unittest.IsolatedAsyncioTestCase):
    """The same for tests that are coroutines."""

    async def asyncSetUp(self):
        # unittest switches it on. It slows every step of every task, and reports the slow ones.
        asyncio.get_running_loop().set_debug(False)


def failpoints(folder):
    """The names of all failpoints in one folder of the sources."""
    text = "".join(path.read_text() for path in sorted((SOURCE / folder).rglob("*.cpp")))
    return re.findall(r'failpoint\("([a-z_.]+)"\)', text)


def write_images(folder, examples):
    """`examples` images of 28 x 28 with the labels 0 to 9 in turn, as IDX files in a new folder.
    Returns the folder."""
    folder.mkdir()
    images = struct.pack(">IIII", 0x803, examples, 28, 28)
    images += bytes(i % 256 for i in range(examples * 28 * 28))
    (folder / "train-images-idx3-ubyte").write_bytes(images)
    labels = struct.pack(">II", 0x801, examples) + bytes(i % 10 for i in range(examples))
    (folder / "train-labels-idx1-ubyte").write_bytes(labels)
    return folder
