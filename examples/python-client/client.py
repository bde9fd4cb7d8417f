# SPDX-License-Identifier: Apache-2.0
"""client.py STATE_FOLDER DATA.npz [TOKEN]: an example of the wire protocol. See README.md."""

import asyncio, base64, contextlib, hashlib, http.client, json, os, pathlib, random, socket, ssl
import struct, sys, tempfile, time, zlib

import numpy as np
import websockets.asyncio.client as websocket
import wire_pb2 as wire
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization as form
from cryptography.hazmat.primitives.asymmetric import ec
from websockets.exceptions import InvalidStatus, WebSocketException
from xxhash import xxh3_128_digest as digest

PROTOCOL, MESSAGE_BYTES_MAX, CHUNK_BYTES, BLOCK = 5, 2 << 20, 1 << 16, 1 << 16
PAUSE_MIN_S, PAUSE_MAX_S, LATER_S, TIMEOUT_S, SILENCE_S = 0.1, 15, 2, 15, 300
STRATEGIES = "fedavg fedprox fedavgm slowmo diloco fedadagrad fedadam fedyogi".split()


class Ended(Exception):
    """This client can't go on, for a reason that its user must know. No text: the run is over."""


def trusting(authorities):
    """A TLS context that trusts the authorities of one server only, and so checks no host name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version, context.check_hostname = ssl.TLSVersion.TLSv1_3, False
    context.load_verify_locations(cadata=authorities)
    return context


class Line:
    """The model: the tensor `weight` is (b, w). A step takes all examples, whatever batch is offered."""

    def __init__(self, path):
        data = np.load(path)
        self.x = np.c_[np.ones(len(data["y"])), data["x"]].astype(np.float32)
        self.y, (self.examples, self.size) = data["y"].astype(np.float32), self.x.shape
        self.layout = digest(struct.pack("<QQ6sq", 6, 1, b"weight", self.size))
        assert self.size > 2, "x needs two columns or more: one or two values are coded otherwise"

    def train(self, start, offer):
        if offer.optimizer not in ("", "sgd") or offer.local_seconds:
            raise ValueError("this client knows --optimizer sgd only, and no --local-seconds")
        steps, weights, velocity = offer.local_steps or offer.local_epochs, start.copy(), 0
        for _ in range(steps):
            error = self.x @ weights - self.y
            gradient = error @ self.x / self.examples + offer.weight_decay * weights
            velocity = offer.momentum * velocity + gradient + offer.proximal_mu * (weights - start)
            weights -= offer.lr * velocity
        return weights - start, steps, float(np.square(error).mean() / 2)

    def encode(self, update):
        """Codec `none` (shared/codec/payload/reader.hpp): blocks of fp32 after a byte that says so."""
        if update.shape != (self.size,) or not np.isfinite(update).all():
            raise ValueError(f"the update is not {self.size} finite values")
        parts = np.split(update.astype("<f4"), range(BLOCK, self.size, BLOCK))
        blocks = [b"\0" + part.tobytes() for part in parts]
        head = struct.pack("<4sI8s", b"FLP3", BLOCK, self.layout[:8])
        return b"".join([head, struct.pack(f"<{len(blocks)}I", *map(len, blocks)), *blocks])


class Client:
    """`offer`: the newest task, not begun. `pending`: an update without verdict. `part`: of a download."""

    def __init__(self, folder, model):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.file, self.model, self.run_key = folder / "identity.json", model, None
        self.kept = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.pause_s, self.part, self.pending = PAUSE_MIN_S, (0, bytearray()), None

    def keep(self, **changes):
        self.kept |= changes
        new, durably = self.file.with_suffix(".new"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_SYNC
        with open(os.open(new, durably, 0o600), "w") as file:
            json.dump(self.kept, file)
        new.replace(self.file)

    def request(self):
        """A signing request for the next key. That is kept first, for the answer may be lost."""
        if "next" not in self.kept:
            kind = form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
            self.keep(next=ec.generate_private_key(ec.SECP256R1()).private_bytes(*kind).decode())
        key = form.load_pem_private_key(self.kept["next"].encode(), None)
        builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
        return builder.sign(key, hashes.SHA256()).public_bytes(form.Encoding.PEM).decode()

    def take(self, certificate, ca, **facts):
        self.keep(key=self.kept.pop("next"), certificate=certificate, ca=ca, **facts)

    def join(self, token):
        """Enrols with the token (shared/identity/token.hpp)."""
        data = base64.urlsafe_b64decode(token[5:] + "A" * (-len(token[5:]) % 4)) + bytes(320)
        end = 1 + data[0]
        port, pinned, number, secret, check = struct.unpack_from("<H32s8s16sI", data, end)
        if not token.startswith("flj1.") or check != zlib.crc32(data[: end + 58]):
            raise Ended("this is not a complete join token: copy it again")
        host, context = data[1:end].decode(), ssl._create_unverified_context()
        with context.wrap_socket(socket.create_connection((host, port), TIMEOUT_S)) as tls:
            chain = [one.public_bytes() for one in tls._sslobj.get_unverified_chain()]
        keys = [x509.load_pem_x509_certificate(pem.encode()).public_key() for pem in chain]
        spki = form.Encoding.DER, form.PublicFormat.SubjectPublicKeyInfo
        prints = [hashlib.sha256(key.public_bytes(*spki)).digest() for key in keys]
        if pinned not in prints:  # Nothing secret was sent until here.
            raise Ended(f"{host}:{port} is not the server that this token was made for")
        context = trusting(chain[prints.index(pinned)])
        https = http.client.HTTPSConnection(host, port, context=context, timeout=TIMEOUT_S)
        secret = base64.urlsafe_b64encode(secret).decode().rstrip("=")
        body = {"token_id": number.hex(), "secret": secret, "name": "", "csr": self.request()}
        https.request("POST", "/v1/enroll", json.dumps(body), {"Content-Type": "application/json"})
        answer = json.loads((response := https.getresponse()).read(MESSAGE_BYTES_MAX))
        if response.status != 200:
            raise (ConnectionError if response.status >= 500 else Ended)(answer["error"])
        server = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.take(answer["certificate"], answer["ca"], server=server, token=token)

    async def run(self, token=""):
        """Takes part until Ended. Connects again, after a growing pause, when the line breaks."""
        while True:
            try:
                if token and token != self.kept.get("token"):
                    self.join(token)
                await self.serve()
            except (OSError, WebSocketException, http.client.HTTPException) as error:
                if isinstance(error, InvalidStatus) and error.response.status_code == 401:
                    raise Ended(error.response.body.decode()) from None
                if isinstance(error, ssl.SSLCertVerificationError) or getattr(error, "filename", None):
                    raise Ended(error) from None  # Another server or a file failed: the connection is not broken.
                print(f"{error!r}; trying again")
            await asyncio.sleep(self.pause_s * random.uniform(0.5, 1))
            self.pause_s = min(2 * self.pause_s, PAUSE_MAX_S)

    async def serve(self):
        if "server" not in self.kept:
            raise Ended("this client has not joined: start it with a TOKEN")
        context, address = trusting(self.kept["ca"]), f"wss://{self.kept['server']}/v1/session"
        with tempfile.NamedTemporaryFile("w", dir=self.file.parent) as file:
            print(self.kept["key"] + self.kept["certificate"], file=file, flush=True)
            context.load_cert_chain(file.name)
        # The library answers pings at all times. On a slow line the answers to its own may come late.
        options = dict(ping_timeout=SILENCE_S, max_size=MESSAGE_BYTES_MAX, proxy=None, ssl=context)
        async with websocket.connect(address, **options) as self.ws:
            try:
                await self.shake_hands()
                while True:
                    await self.upload()
                    await (self.work(self.offer) if self.offer else self.receive("offer"))
            except Ended as reason:
                with contextlib.suppress(WebSocketException):
                    await self.send(bye=wire.Bye(cause=wire.Bye.LEAVING, reason=str(reason)))
                raise

    async def send(self, payload=b"", **kind):
        header = wire.Header(**kind).SerializeToString()
        await self.ws.send(struct.pack("<I", len(header)) + header + payload)

    async def receive(self, *kinds):
        while True:
            message = await self.ws.recv()
            end = 4 + struct.unpack_from("<I", message)[0]
            header = wire.Header.FromString(message[4:end])
            if header.HasField("bye"):
                endings = {wire.Bye.FINISHED: Ended(), wire.Bye.REFUSED: Ended(header.bye.reason)}
                raise endings.get(header.bye.cause, ConnectionError(header.bye.reason))
            pending = self.pending[0].task if self.pending else 0
            if header.HasField("offer") and header.offer.task != pending:  # It may come again.
                self.offer = header.offer
            if header.HasField("renewed"):
                self.take(header.renewed.certificate_pem, header.renewed.ca_pem)
            if header.WhichOneof("kind") in kinds:
                return header, message[end:]

    async def shake_hands(self):
        self.offer = None  # The server repeats it if it is open.
        await self.send(hello=wire.Hello(protocol=PROTOCOL, software="client.py", codecs=["none"]))
        welcome = (await self.receive("welcome"))[0].welcome
        if welcome.strategy.partition(":")[0] not in STRATEGIES:
            raise Ended(f"this client does not know the run's method '{welcome.strategy}'")
        if welcome.layout_digest != self.model.layout:
            raise Ended(f"the run's model is not one tensor 'weight' [{self.model.size}]")
        if welcome.run_key != self.run_key:
            self.run_key, self.pending, self.have = welcome.run_key, None, (-1, None)
        await self.send(ready=wire.Ready(train_examples=self.model.examples))
        own = x509.load_pem_x509_certificate(self.kept["certificate"].encode())
        begin, end = own.not_valid_before_utc.timestamp(), own.not_valid_after_utc.timestamp()
        is_other = welcome.authorities != hashlib.sha256(self.kept["ca"].encode()).digest()
        if is_other or time.time() > begin + (end - begin) * 2 / 3:
            await self.send(renew=wire.Renew(csr_pem=self.request()))
        self.pause_s = PAUSE_MIN_S

    async def work(self, offer):
        """Does a task, unless its version is gone or a newer one is there. Its update is pending then."""
        self.offer = None
        if self.have[0] != offer.version:
            await self.fetch(offer.version)
        if self.have[0] != offer.version or self.offer:
            return
        try:  # In a thread, because the server's pings must be answered meanwhile.
            update, steps, loss = await asyncio.to_thread(self.model.train, self.have[1], offer)
            payload = self.model.encode(update)
        except Exception as error:
            reason = f"round {offer.round}: {type(error).__name__}: {error}"[:500]
            await self.send(failed=wire.Failed(task=offer.task, reason=reason))
            raise Ended(reason) from error
        task = dict(task=offer.task, round=offer.round, version=offer.version, codec=offer.codec)
        facts = dict(examples=self.model.examples, steps=steps, loss=loss, bytes=len(payload))
        self.pending = wire.UploadBegin(**task, **facts, digest=digest(payload)), payload

    async def fetch(self, version):
        """Gets the weights of a version, if it is not gone. Goes on where a broken download ended."""
        transfer, data = self.part
        await self.send(fetch=wire.Fetch(version=version, transfer=transfer, offset=len(data)))
        header, _ = await self.receive("model", "failed")
        if header.HasField("failed"):
            return
        del data[header.model.offset :]
        self.part, size = (header.model.transfer, data), 4 * self.model.size  # No more is kept.
        while header.model.bytes == size > len(data):
            data += (await self.receive("chunk"))[1]
        self.part = 0, bytearray()
        if len(data) != size or digest(data) != header.model.digest:
            raise ConnectionError(f"version {version} is not the announced model of {size} bytes")
        self.have = version, np.frombuffer(data, "<f4")

    async def upload(self):
        """Sends what is pending until it has a verdict, from the first byte on that the server lacks."""
        while self.pending:
            begin, payload = self.pending
            await self.send(begin=begin)
            header, _ = await self.receive("resume", "verdict")
            if header.HasField("resume"):
                step = min(header.resume.chunk_bytes, CHUNK_BYTES)
                for at in range(header.resume.offset, len(payload), step):
                    chunk = wire.Chunk(transfer=begin.task, offset=at)
                    await self.send(payload[at : at + step], chunk=chunk)
                header, _ = await self.receive("verdict")
            if header.verdict.outcome == wire.Verdict.LATER:
                await asyncio.sleep(LATER_S)
            elif header.verdict.task == begin.task:  # A verdict may come twice.
                self.pending = None
                print(f"round {begin.round}: {wire.Verdict.Outcome.Name(header.verdict.outcome)}")


if __name__ == "__main__":
    try:
        folder, data, *token = sys.argv[1:]
        asyncio.run(Client(pathlib.Path(folder), Line(data)).run(*token))
    except (Ended, OSError, KeyError, ValueError) as error:
        sys.exit(f"client.py: {str(error)!r}" if str(error) else 0)
