# SPDX-License-Identifier: Apache-2.0
"""Helpers of the process tests: they run the real programs in temporary folders, wait with a time
limit, and read the history as a user does.

FL_BIN names the folder of fl-server and fl-client, FL_SOURCE the repository. Each test has a
temporary folder. At its end the programs that it has started are killed and the folder is removed.
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
import zipfile
import zlib

BIN = pathlib.Path(os.environ["FL_BIN"])
SOURCE = pathlib.Path(os.environ.get("FL_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
WAIT_MAX_S = (
    120  # A program that takes longer hangs. Sanitizers and busy machines need much of this.
)
PARALLEL = 4  # Number of federations that run at the same time.
if os.environ.get("FL_TEST_DEVICE", "cpu") == "cpu":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Tests compare bits, and those of a GPU are its own.
DISK_STEPS_MAX = 500  # A longer walk over disk steps would not end.
LONG_WALK = 50
EVERY_STEP = os.environ.get("FL_EVERY_STEP") == "1"  # As ./dev test --all sets it.
programs = weakref.WeakSet()  # All programs that the test has started.


def wait_until(what, condition, limit_s=WAIT_MAX_S):
    """Returns what `condition` returns as soon as it is true. After `limit_s` raises AssertionError
    with `what` and the last output of the running programs."""
    end = time.monotonic() + limit_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            said = "\n".join(str(program) for program in programs if program.running())
            raise AssertionError(f"waited {limit_s} s in vain for: {what}\n{said}")
        time.sleep(0.01)


def memory_folder(bytes_min=512 << 20):
    """Returns a folder in memory with that much space, or None for the usual place. Good for tests
    that only kill programs: written data outlive a program, synced or not, and syncs to a disk
    would take half of such a test's time."""
    folder = "/dev/shm"
    if os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= bytes_min:
        return folder
    return None


RESERVED = []  # A socket that reserves each port until the end of this process.


def free_port():
    """Returns a port below the range from which the kernel takes ports of outgoing connections: a
    client that tries to connect to a dead server must not get the server's own port. A test that
    runs at the same time does not get this port, either."""
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
    """Removes all but the last value of each repeated flag, because the programs refuse
    repetition."""
    kept = []
    for flag in map(str, flags):
        if flag.startswith("--") and flag in kept:
            del kept[kept.index(flag) : kept.index(flag) + 2]
        kept.append(flag)
    return kept


def forge(token, **changes):
    """Returns the token with changed fields and a correct checksum."""
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
    """A running program. Its stdout and stderr go to files, because nobody reads a pipe."""

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

    def pause(self):
        """Stops the program until SIGCONT. SIGSTOP alone lets it run on until one of its threads has
        taken the signal, which takes milliseconds on a busy machine; this waits until all stand."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def wait(self, limit_s=WAIT_MAX_S):
        """Waits for the end and returns the exit code, which is -9 after SIGKILL."""
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
        """Waits until stderr has `text`."""
        with contextlib.suppress(AssertionError):
            wait_until(text, lambda: text in self.stderr() or not self.running(), limit_s)
        if text not in self.stderr():
            raise AssertionError(f"stderr never had '{text}': {self}")

    def __str__(self):
        tail = "\n    ".join(self.stderr().splitlines()[-30:])
        return f"{' '.join(self.arguments)} (exit {self.process.poll()})\n    {tail}"


class Federation:
    """One folder with the state of a server and its clients. The server keeps its port over
    restarts, so that its clients find it again."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.state = self.folder / "server"
        self.port = free_port()
        self.programs = []
        self.numbers = itertools.count()  # Numbers of the logs. next() is thread-safe.

    def start(self, name, arguments, failpoint=""):
        program = Program(arguments, self.folder / f"{next(self.numbers):04}-{name}", failpoint)
        self.programs.append(program)
        return program

    def server(self, *flags, failpoint="", ready=True, files_max=0):
        """Starts fl-server. With `ready` waits until it listens. A new run has codec `none` and seed
        0 unless `flags` say otherwise; a run that continues keeps both. `files_max`: how many files it
        may open; 0: as many as this program."""
        ready_file = self.folder / "ready.json"
        ready_file.unlink(missing_ok=True)
        places = ["--state", self.state, "--listen", f"127.0.0.1:{self.port}", "--admin", "off"]
        if "--new-run" in flags or not (self.state / "history.sqlite").exists():
            flags = ("--codec", "none", "--seed", 0, *flags)
        flags = last_of_each([*places, "--ready-file", ready_file, *flags])
        limit = ["prlimit", f"--nofile={files_max}:{files_max}", "--"] if files_max else []
        program = self.start("server", [*limit, BIN / "fl-server", *flags], failpoint)
        if ready:
            self.await_ready(program)
            if not ready_file.exists():
                raise AssertionError(f"the server ended at its start: {program}")
            program.ready = json.loads(ready_file.read_text())
        return program

    def await_ready(self, server):
        """Waits until the server listens or has ended."""
        ready_file = self.folder / "ready.json"
        wait_until("server is ready", lambda: ready_file.exists() or not server.running())

    def server_or_killed(self, *flags, failpoint):
        """Starts fl-server and waits until it listens or was killed at its start."""
        server = self.server(*flags, failpoint=failpoint, ready=False)
        self.await_ready(server)
        return server

    def client(self, name, *flags, failpoint=""):
        return self.start(
            f"client-{name}", [BIN / "fl-client", "--state", self.folder / name, *flags], failpoint
        )

    def command(self, *arguments):
        """Runs a program that ends by itself, such as "fl-server", "history". Returns its exit
        code, stdout and stderr."""
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

    def join(self, name, role="trainer"):
        token = self.token(name, "--role", role)
        code, _, err = self.command("fl-client", "join", token, "--state", self.folder / name)
        if code != 0:
            raise AssertionError(f"{name} could not join: {err}")

    def query(self, sql, *parameters):
        """Returns rows of the history. The server may be running."""
        with contextlib.closing(
            sqlite3.connect(f"file:{self.state}/history.sqlite?mode=ro", uri=True, timeout=10)
        ) as db:
            return db.execute(sql, parameters).fetchall()

    def rounds_done(self):
        return self.query(
            "SELECT count(*) FROM round_summary WHERE run_id = (SELECT max(id) FROM run)"
        )[0][0]

    def digests(self):
        """Returns the digests of all model versions of the newest run, in order."""
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
        """Copies the server and the clients to `folder`, with another port. No program of this
        federation may run."""
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
    """A test class whose make() returns federations with clients that have joined."""

    names = ("a", "b", "c")
    evaluators = ()  # The clients that are enrolled as evaluators.
    place = None  # Parent of the temporary folders; None: the usual place.
    longMessage = True

    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="tributary-", dir=cls.place))
        cls.addClassCleanup(shutil.rmtree, cls.root, ignore_errors=True)
        # Enrolment takes a second, so do it once and copy the result.
        cls.template = Federation(cls.root / "template")
        cls.addClassCleanup(cls.template.close)
        server = cls.template.server("--model", "synthetic:1")
        for name in cls.names:
            cls.template.join(name, "evaluator" if name in cls.evaluators else "trainer")
        server.signal(signal.SIGTERM)
        if server.wait() != 0:
            raise AssertionError(f"the server did not stop cleanly: {server}")

    def make(self, name="federation"):
        federation = self.template.copy(self.root / self.id() / name)
        self.addCleanup(federation.close)
        return federation

    def walk_disk_steps(self, steps_min, attempt):
        """Calls attempt(failpoint, name) with the failpoints before and after the first, second,
        ... change of the disk, until it returns False: the program was not killed there. Of long
        walks only every third step is tried, from a random one on; all with FL_EVERY_STEP=1."""
        stride = 1 if steps_min < LONG_WALK or EVERY_STEP else 3
        reached, step = True, random.SystemRandom().randint(1, stride)
        with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
            while reached and step < DISK_STEPS_MAX:
                steps = range(step, step + stride * PARALLEL, stride)
                calls = [pool.submit(attempt, f"disk.step:{n}", f"step-{n}") for n in steps]
                outcomes = []
                for n, call in zip(steps, calls):
                    with self.subTest(step=n):
                        outcomes.append(call.result())
                if len(outcomes) < PARALLEL:
                    return  # One failure is enough.
                reached = all(outcomes)
                step += stride * PARALLEL
        self.assertTrue(steps_min < step < DISK_STEPS_MAX, f"walked to step {step} on the disk")
        print(f"{self.id().rpartition('.')[2]}: killed at about {step} steps on the disk")

    def some_of(self, cases, every=2):
        """Every so many of many like cases, from a random one on; all with FL_EVERY_STEP=1."""
        first = random.SystemRandom().randrange(min(every, len(cases)))
        return cases if EVERY_STEP else cases[first::every]

    def expect_exit(self, program, code=0, limit_s=WAIT_MAX_S):
        self.assertEqual(program.wait(limit_s), code, str(program))


class AsyncFederationTest(FederationTest, unittest.IsolatedAsyncioTestCase):
    """FederationTest for tests that are coroutines."""

    async def asyncSetUp(self):
        # unittest enables debug mode, which slows every step of every task and reports slow ones.
        asyncio.get_running_loop().set_debug(False)


def failpoints(folder):
    """Returns the names of all failpoints in one folder of the sources."""
    text = "".join(path.read_text() for path in sorted((SOURCE / folder).rglob("*.cpp")))
    return re.findall(r'failpoint\("([a-z_.]+)"\)', text)


def write_images(folder, examples):
    """Writes `examples` images of 28 x 28 with the labels 0 to 9 in turn as IDX files to a new
    folder. Returns the folder."""
    folder.mkdir()
    images = struct.pack(">IIII", 0x803, examples, 28, 28)
    images += bytes(i % 256 for i in range(examples * 28 * 28))
    (folder / "train-images-idx3-ubyte").write_bytes(images)
    labels = struct.pack(">II", 0x801, examples) + bytes(i % 10 for i in range(examples))
    (folder / "train-labels-idx1-ubyte").write_bytes(labels)
    return folder


def npy(dtype, shape, values):
    """An array as numpy writes it into a .npz file."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + values


def png(rows, columns, pixels):
    """A grey PNG file."""
    lines = b"".join(b"\0" + pixels[i * columns : (i + 1) * columns] for i in range(rows))

    def chunk(kind, body):
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    size = struct.pack(">IIBBBBB", columns, rows, 8, 0, 0, 0, 0)
    parts = [(b"IHDR", size), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, body) for kind, body in parts)


def write_images_in_all_formats(folder, sites):
    """Writes 28 x 28 images, 12 of each class one behind the other, and the site of each, one of
    `sites` in turn. Returns what --data may be: the same for the programs."""
    count, area = 120, 28 * 28
    labels = bytes(i // 12 for i in range(count))
    images = [bytes((i * 7 + k * (1 + i // 12)) % 256 for k in range(area)) for i in range(count)]
    for name in ("idx", "images"):
        (folder / name).mkdir(parents=True)
    magic = struct.pack(">IIII", 0x803, count, 28, 28)
    (folder / "idx/train-images-idx3-ubyte").write_bytes(magic + b"".join(images))
    (folder / "idx/train-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels)
    with zipfile.ZipFile(folder / "all.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy("|u1", f"({count}, 28, 28)", b"".join(images)))
        archive.writestr("y.npy", npy("|u1", f"({count},)", labels))
        names = b"".join(sites[i % len(sites)].encode().ljust(8, b"\0") for i in range(count))
        archive.writestr("site.npy", npy("|S8", f"({count},)", names))
    for i, image in enumerate(images):
        (folder / f"images/{labels[i]}").mkdir(exist_ok=True)
        (folder / f"images/{labels[i]}/{i:04}.png").write_bytes(png(28, 28, image))
    return f"idx:{folder}/idx", f"npz:{folder}/all.npz", f"images:{folder}/images,channels=1"
