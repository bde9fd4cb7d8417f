#!/usr/bin/env python3
"""A Tributary client in Python: what it takes to speak proto/wire.proto from another language.

It joins with a token, connects with the certificate that it got for it, and trains in numpy:
`logistic` on images, `synthetic:N` on nothing at all. See README.md for how to run it.
"""

import argparse
import asyncio
import base64
import hashlib
import http.client
import json
import pathlib
import random
import socket
import ssl
import struct
import subprocess
import sys
import tempfile

import numpy as np
import websockets.asyncio.client
import xxhash
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PROTOCOL = 1
BLOCK_ELEMENTS = 65536  # Of a payload; see shared/codec/payload.hpp.
PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto"


def load_schema():
    """The module that protoc makes of proto/wire.proto."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["protoc", f"--proto_path={PROTO}", f"--python_out={folder}", "wire.proto"], check=True
        )
        sys.path.insert(0, folder)
        import wire_pb2

        sys.path.remove(folder)
        return wire_pb2


wire = load_schema()


class Refused(Exception):
    """The server does not want this client as it is; trying again would not help."""


# Joining (shared/identity) ----------------------------------------------------------------------


def parse_token(token):
    """(host, port, fingerprint, id, secret) of a join token."""
    body = token.strip().removeprefix("flj1.")
    fields = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
    host, rest = fields[1 : 1 + fields[0]].decode(), fields[1 + fields[0] :]
    port, fingerprint, token_id, secret, _checksum = struct.unpack("<H32s8s16sI", rest)
    return host, port, fingerprint, token_id, secret


def authority_of(host, port, fingerprint):
    """The certificate (PEM) of the authority whose key has this SHA-256. Nothing secret is sent
    before this is known: a server that shows another authority gets no further."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(socket.create_connection((host, port), 15)) as tls:
        # Public since Python 3.13; before, the same method is on the inner object.
        chain = getattr(tls, "get_unverified_chain", None) or tls._sslobj.get_unverified_chain
        for certificate in chain():
            der = (
                certificate
                if isinstance(certificate, bytes)
                else ssl.PEM_cert_to_DER_cert(certificate.public_bytes())
            )
            parsed = x509.load_der_x509_certificate(der)
            key = parsed.public_key().public_bytes(
                serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
            )
            if hashlib.sha256(key).digest() == fingerprint:
                return parsed.public_bytes(serialization.Encoding.PEM).decode()
    raise Refused(f"{host}:{port} is not the server that this token was made for")


def tls_context(ca_pem):
    """Trusts this authority alone. It certifies one server, so there is no host name to compare."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(cadata=ca_pem)
    return context


def join(token, folder):
    host, port, fingerprint, token_id, secret = parse_token(token)
    ca = authority_of(host, port, fingerprint)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [x509.NameAttribute(x509.NameOID.COMMON_NAME, "client")]
    )  # The server fills it in.
    csr = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    request = {
        "token_id": token_id.hex(),
        "secret": base64.urlsafe_b64encode(secret).rstrip(b"=").decode(),
        "name": "",
        "csr": csr.public_bytes(serialization.Encoding.PEM).decode(),
    }
    connection = http.client.HTTPSConnection(host, port, context=tls_context(ca), timeout=15)
    connection.request(
        "POST", "/v1/enroll", json.dumps(request), {"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    answer = json.loads(response.read())
    if response.status != 200:
        raise Refused(answer["error"])
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    (folder / "key.pem").touch(mode=0o600)
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    (folder / "ca.pem").write_text(answer["ca"])
    (folder / "identity.json").write_text(json.dumps({"server": f"{host}:{port}"}))
    (folder / "cert.pem").write_text(answer["certificate"])  # Last: with it the identity is whole.
    print(f"joined {host}:{port} as '{answer['name']}'", flush=True)


# Messages and payloads (shared/wire, shared/codec) ----------------------------------------------


def frame(payload=b"", **kind):
    """One message: frame(hello=...), or frame(data, chunk=...)."""
    header = wire.Header(**kind).SerializeToString()
    return struct.pack("<I", len(header)) + header + payload


def parse(message):
    """(header, payload) of one message."""
    end = 4 + struct.unpack_from("<I", message)[0]
    return wire.Header.FromString(message[4:end]), message[end:]


def digest(data):
    return xxhash.xxh3_128_digest(data)


def layout_digest(layout):
    """Of [(name, shape)]."""
    text = b"".join(
        struct.pack("<QQ", len(name), len(shape))
        + name.encode()
        + struct.pack(f"<{len(shape)}q", *shape)
        for name, shape in layout
    )
    return digest(text)


def encode(values, layout):
    """The payload of codec `none`: a prefix, and tensors in blocks of a method byte and fp32."""
    blocks, at = [], 0
    for _, shape in layout:
        tensor = values[at : at + int(np.prod(shape))]
        at += tensor.size
        blocks += [
            b"\0" + tensor[i : i + BLOCK_ELEMENTS].tobytes()
            for i in range(0, tensor.size, BLOCK_ELEMENTS)
        ]
    prefix = struct.pack(
        "<4sHH16sQII",
        b"FLP1",
        1,
        4,
        layout_digest(layout),
        values.size,
        BLOCK_ELEMENTS,
        len(blocks),
    )
    return prefix + b"none" + struct.pack(f"<{len(blocks)}I", *map(len, blocks)) + b"".join(blocks)


# Models -----------------------------------------------------------------------------------------


def philox_words(seed, stream, elements):
    """The 32-bit words of elements 0, 1, ... as kernels/philox.hpp numbers them."""
    element = np.arange(elements, dtype=np.uint64)
    index = element // 32 * 8 + element % 8
    x = [index & 0xFFFFFFFF, index >> 32, np.full_like(index, stream), np.zeros_like(index)]
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = x[0] * 0xD2511F53, x[2] * 0xCD9E8D57
        x = [(b >> 32) ^ x[1] ^ keys[0], b & 0xFFFFFFFF, (a >> 32) ^ x[3] ^ keys[1], a & 0xFFFFFFFF]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.choose((element // 8 % 4).astype(np.intp), x)


class Synthetic:
    """`synthetic:N`: Gaussian noise for an update."""

    def __init__(self, size):
        self.layout, self.examples = [("weight", [size])], 1000

    def initial(self, _seed):
        return np.zeros(self.layout[0][1], np.float32)

    def train(self, weights, offer):
        return np.random.default_rng(offer.seed).standard_normal(weights.size, np.float32), 1, 0.0


class Logistic:
    """`logistic`: a softmax over 784 pixels, by mini-batch SGD."""

    layout = [("fc.weight", [10, 784]), ("fc.bias", [10])]

    def __init__(self, path):
        if not path:
            raise Refused("'logistic' needs --data FILE.npz")
        data = np.load(path)
        self.x, self.y = data["x"].reshape(-1, 784).astype(np.float32), data["y"].astype(np.intp)
        self.examples = len(self.y)

    def initial(self, seed):
        """Uniform within 1 / sqrt(784), as shared/params/model_table.cpp draws it."""
        parts = [
            philox_words(seed, t, int(np.prod(shape))) for t, (_, shape) in enumerate(self.layout)
        ]
        steps = (np.concatenate(parts) >> 8).astype(np.int32) - (1 << 23)
        return steps.astype(np.float32) * np.float32(2.0**-23) * np.float32(1 / 28)

    def train(self, weights, offer):
        local = weights.copy()
        w, b = local[:7840].reshape(10, 784), local[7840:]
        velocity = np.zeros_like(local)
        order = np.random.default_rng(offer.seed)
        passes = (
            offer.local_epochs
            if not offer.local_steps
            else -(-offer.local_steps * offer.batch_size // self.examples)
        )
        batches = [
            batch
            for _ in range(passes)
            for batch in np.split(
                order.permutation(self.examples),
                range(offer.batch_size, self.examples, offer.batch_size),
            )
        ]
        batches = batches[: offer.local_steps or None]
        losses = []
        for batch in batches:
            x, rows, y = self.x[batch], np.arange(len(batch)), self.y[batch]
            logits = x @ w.T + b
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            losses.append(-np.log(np.maximum(p[rows, y], 1e-12)).mean())
            p[rows, y] -= 1
            gradient = np.concatenate([(p.T @ x).ravel(), p.sum(axis=0)]) / len(batch)
            gradient += offer.weight_decay * local + offer.proximal_mu * (local - weights)
            velocity = offer.momentum * velocity + gradient
            local -= (offer.lr * velocity).astype(np.float32)
        return local - weights, len(batches), float(np.mean(losses))


def make_model(name, data):
    if name.startswith("synthetic:"):
        return Synthetic(int(name.removeprefix("synthetic:")))
    if name == "logistic":
        return Logistic(data)
    raise Refused(f"this client trains logistic and synthetic:N, the run trains {name}")


# The client -------------------------------------------------------------------------------------


class Client:
    """One federation's member. `pending` is the update that no verdict has come for yet, and so
    outlives a connection; `offer` is the task that is waiting for its model."""

    def __init__(self, folder, data=""):
        self.folder, self.data = folder, data
        self.model = self.offer = self.pending = None
        self.wants_initial = False
        self.download = bytearray()

    def connect(self):
        context = tls_context((self.folder / "ca.pem").read_text())
        context.load_cert_chain(self.folder / "cert.pem", self.folder / "key.pem")
        server = json.loads((self.folder / "identity.json").read_text())["server"]
        return websockets.asyncio.client.connect(
            f"wss://{server}/v1/session",
            ssl=context,
            compression=None,
            max_size=2 << 20,
            proxy=None,
        )

    async def shake_hands(self, ws):
        await ws.send(
            frame(hello=wire.Hello(protocol=PROTOCOL, software="python example", codecs=["none"]))
        )
        header, _ = parse(await ws.recv())
        if header.HasField("bye"):
            raise (Refused if header.bye.cause == wire.Bye.REFUSED else ConnectionError)(
                header.bye.reason
            )
        welcome = header.welcome
        self.model = self.model or make_model(welcome.model, self.data)
        if layout_digest(self.model.layout) != welcome.layout_digest:
            raise Refused(f"the server's {welcome.model} has other tensors than this client's")
        self.seed = welcome.seed
        await ws.send(frame(ready=wire.Ready(train_examples=self.model.examples)))

    def keep(self, values, **fields):
        """Makes `values` the pending upload."""
        payload = encode(values, self.model.layout)
        begin = wire.Begin(
            layout_digest=layout_digest(self.model.layout),
            bytes=len(payload),
            digest=digest(payload),
            sections=[wire.Section(name="update", bytes=len(payload))],
            codec="none",
            **fields,
        )
        self.pending = begin, payload

    async def upload(self, ws, resume):
        begin, payload = self.pending
        for at in range(resume.offset, len(payload), resume.chunk_bytes):
            chunk = wire.Chunk(transfer=begin.task, offset=at)
            await ws.send(frame(payload[at : at + resume.chunk_bytes], chunk=chunk))

    async def initialise(self, ws):
        self.wants_initial = False
        self.keep(self.model.initial(self.seed), purpose=wire.INITIAL)
        await ws.send(frame(begin=self.pending[0]))

    async def train(self, ws, weights):
        offer, self.offer = self.offer, None
        # On a thread, so that the server's pings are answered meanwhile.
        update, steps, loss = await asyncio.to_thread(self.model.train, weights, offer)
        self.keep(
            update,
            task=offer.task,
            round=offer.round,
            version=offer.version,
            examples=self.model.examples,
            steps=steps,
            loss=loss,
        )
        print(f"round {offer.round}: trained, loss {loss:.4f}", flush=True)
        await ws.send(frame(begin=self.pending[0]))

    async def settle(self, ws, verdict):
        begin, _ = self.pending
        if verdict.outcome == wire.Verdict.LATER:
            await asyncio.sleep(2)
            return await ws.send(frame(begin=begin))
        self.pending = None
        what = f"round {begin.round}" if begin.purpose == wire.UPDATE else "initial weights"
        print(f"{what}: {wire.Verdict.Outcome.Name(verdict.outcome)} {verdict.reason}", flush=True)
        if self.wants_initial:
            await self.initialise(ws)
        elif self.offer:
            await ws.send(frame(fetch=wire.Fetch(version=self.offer.version)))

    async def handle(self, ws, header, payload):
        kind = header.WhichOneof("kind")
        if kind == "initialise" and self.pending:
            self.wants_initial = True  # One upload at a time.
        elif kind == "initialise":
            await self.initialise(ws)
        elif kind == "offer":
            if self.pending and self.pending[0].task == header.offer.task:
                return  # It is on its way.
            self.offer = header.offer
            if not self.pending:
                await ws.send(frame(fetch=wire.Fetch(version=self.offer.version)))
        elif kind == "model":
            self.incoming, self.download = header.model, bytearray()
        elif kind == "chunk":
            self.download += payload
            is_whole = len(self.download) == self.incoming.bytes
            if is_whole and self.offer and self.offer.version == self.incoming.version:
                if digest(bytes(self.download)) != self.incoming.digest:
                    raise ConnectionError(f"model version {self.incoming.version} arrived damaged")
                await self.train(ws, np.frombuffer(bytes(self.download), np.float32))
        elif kind == "resume":
            await self.upload(ws, header.resume)
        elif kind == "verdict" and self.pending:
            await self.settle(ws, header.verdict)

    async def serve(self):
        """One connection. True: the run is over."""
        async with self.connect() as ws:
            await self.shake_hands(ws)
            if self.pending:
                await ws.send(frame(begin=self.pending[0]))
            async for message in ws:
                header, payload = parse(message)
                if header.HasField("bye"):
                    if header.bye.cause == wire.Bye.REFUSED:
                        raise Refused(header.bye.reason)
                    return header.bye.cause == wire.Bye.FINISHED
                await self.handle(ws, header, payload)
        return False

    async def run(self):
        pause = 0.1
        while True:
            try:
                if await self.serve():
                    return print("the run is over", flush=True)
                pause = 0.1
            except websockets.exceptions.InvalidStatus as error:
                if error.response.status_code == 401:
                    raise Refused(error.response.body.decode())
            except (OSError, websockets.exceptions.WebSocketException) as error:
                print(f"{error}; trying again", flush=True)
            pause = min(15, 2 * pause)
            await asyncio.sleep(pause * random.random())


def main():
    parser = argparse.ArgumentParser(description="A Tributary client in Python")
    parser.add_argument(
        "--state",
        type=pathlib.Path,
        default="python-client-state",
        help="folder for key and certificate",
    )
    parser.add_argument("--join", metavar="TOKEN", help="join with this token first")
    parser.add_argument(
        "--data", default="", help="an .npz file with x [n, 784] and y [n], for `logistic`"
    )
    options = parser.parse_args()
    try:
        if options.join and not (options.state / "cert.pem").exists():
            join(options.join, options.state)
        if not (options.state / "cert.pem").exists():
            raise Refused(f"{options.state} holds no identity: join first, with --join TOKEN")
        asyncio.run(Client(options.state, options.data).run())
    except Refused as error:
        sys.exit(f"client.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
