#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Tributary client in Python. This file is the conversation:

    Hello -> Welcome -> Ready, then round by round
    Offer -> Fetch -> Model, Chunks -> (train) -> Begin -> Resume -> Chunks -> Verdict, until Bye.

messages.py encodes the messages, codec.py encodes updates, kept.py saves what a restart needs, enrol.py
gets the client's certificate, and model.py has the models.
"""

import argparse
import asyncio
import contextlib
import math
import pathlib
import random
import runpy
import sys

import numpy as np
import websockets.asyncio.client as websocket
from websockets.exceptions import InvalidStatus, WebSocketException

import codec
import enrol
import kept
from enrol import Refused
from messages import digest, encode_plain, frame, layout_digest, make_upload
from messages import metric_kinds, metric_values, parse, shown, wire
from model import make_model

PROTOCOL = 5
MESSAGE_BYTES_MAX = 2 << 20
LATER_PAUSE_S = 2
# The methods for which a client only needs SGD, perhaps with a proximal term.
STRATEGIES = "fedavg fedprox fedavgm slowmo diloco fedadagrad fedadam fedyogi".split()
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.1, 15
TENSORS_TOLD_BYTES_MAX = 128 << 10
NOTHING = -1, None


class Finished(Exception):
    """The run is over."""


class OtherTensors(Refused):
    """The model has other tensors than the run. The server says which, if it is told these."""

    def __init__(self, model, layout):
        super().__init__(f"the run's model '{model}' has other tensors than this client's")
        self.layout = layout

    def tensors(self):
        told, left = [], TENSORS_TOLD_BYTES_MAX
        for name, shape in self.layout:
            tensor = wire.Tensor(name=name, shape=shape)
            left -= tensor.ByteSize() + 8
            if left < 0:
                break
            told.append(tensor)
        return told


class Client:
    """One client of a federation.

    pending      an upload without a verdict: (UploadBegin, payload); it outlives a connection
    request      the newest Offer that is not done yet
    to_evaluate  the versions to evaluate
    replica      the version that was fetched last, and its weights"""

    def __init__(self, folder, data="", models=make_model, is_evaluator=False):
        self.folder = pathlib.Path(folder)
        self.server, self.tls = enrol.load(self.folder)
        self.data, self.models, self.is_evaluator = data, models, is_evaluator
        self.run_key = self.pending = self.request = None
        self.to_evaluate = []
        self.backoff_s = BACKOFF_MIN_S
        self.refusals = 0  # In a row.

    async def run(self):
        """Takes part until the run is over. Reconnects when a connection breaks."""
        while True:
            try:
                await self.serve()
            except Finished:
                return print("the run is over")
            except (OSError, WebSocketException) as error:
                if isinstance(error, InvalidStatus) and error.response.status_code == 401:
                    raise Refused(error.response.body.decode(errors="replace")) from None
                print(f"{shown(error)}; trying again")
            await asyncio.sleep(self.backoff_s * random.random())
            self.backoff_s = min(2 * self.backoff_s, BACKOFF_MAX_S)

    async def serve(self):
        """Serves one connection. It ends with an exception: the server's Bye or a broken connection."""
        async with self.connect() as self.ws:
            try:
                await self.shake_hands()
                self.backoff_s = BACKOFF_MIN_S
                await self.upload()  # An upload that the last connection did not finish.
                while True:
                    await self.train(await self.next_offer())
                    await self.upload()
            except Refused as reason:  # Tell the server, which records it in its history.
                bye = wire.Bye(cause=wire.Bye.LEAVING, reason=shown(reason))
                with contextlib.suppress(WebSocketException):
                    if isinstance(reason, OtherTensors):
                        bye.tensors.extend(reason.tensors())
                        bye.has_more_tensors = len(bye.tensors) < len(reason.layout)
                    await self.send(bye=bye)
                    if bye.tensors:
                        await self.receive("bye")  # Raises what the server says.
                raise

    def connect(self):
        address = f"wss://{self.server}/v1/session"
        return websocket.connect(address, ssl=self.tls, proxy=None, max_size=MESSAGE_BYTES_MAX)

    async def send(self, payload=b"", **kind):
        await self.ws.send(frame(payload, **kind))

    async def receive(self, *kinds):
        """Returns (header, payload) of the next message of these kinds. Requests that arrive before
        it are kept in `request` and `to_evaluate`."""
        while True:
            header, payload = parse(await self.ws.recv())
            kind = header.WhichOneof("kind")
            if kind == "bye":
                if header.bye.cause == wire.Bye.FINISHED:
                    await self.send(bye=wire.Bye(cause=wire.Bye.LEAVING))
                endings = {wire.Bye.FINISHED: Finished, wire.Bye.REFUSED: Refused}
                raise endings.get(header.bye.cause, ConnectionError)(header.bye.reason)
            if kind == "offer":
                self.request = header
            if kind == "evaluate":
                self.to_evaluate.append(header.evaluate.version)
            if kind == "offer" and header.offer.initial_digest:
                if self.initial is None or header.offer.initial_digest != digest(self.initial):
                    raise Refused(
                        "this client's initial weights differ from the run's: install the same "
                        "release on server and client"
                    )
            if kind in kinds:
                return header, payload

    async def shake_hands(self):
        """Hello, Welcome, Ready. The server takes the client's name from its certificate."""
        self.request, self.to_evaluate = None, []  # The server repeats requests that are still open.
        hello = wire.Hello(protocol=PROTOCOL, software="python", codecs=codec.names())
        hello.evaluator = self.is_evaluator
        await self.send(hello=hello)
        welcome = (await self.receive("welcome"))[0].welcome
        if welcome.strategy.partition(":")[0] not in STRATEGIES:
            raise Refused(f"this client does not implement the run's strategy '{welcome.strategy}'")
        if welcome.run_key != self.run_key:
            self.model = self.models(welcome.model, self.data)
            if not any(math.prod(shape) for _, shape in self.model.layout):
                raise Refused("no tensor of the model has an element: nothing to train")
            if layout_digest(self.model.layout) != welcome.layout_digest:
                raise OtherTensors(welcome.model, self.model.layout)
            # A built-in model's weights are compared with the server's (receive()).
            has_initial = hasattr(self.model, "initial")
            self.initial = None
            if has_initial:
                self.initial = np.ascontiguousarray(self.model.initial(welcome.seed), np.float32)
            self.coder = codec.Coder(self.model.layout) if codec.LIBRARY else None
            self.run_key, self.replica = welcome.run_key, NOTHING
            self.pending = kept.load(self.folder, self.run_key, self.coder)
        held_out = getattr(self.model, "held_out", 0)
        if self.is_evaluator and not held_out:
            raise Refused("--evaluate-only needs held-out examples, and this model has none")
        examples = 0 if self.is_evaluator else self.model.examples
        ready = wire.Ready(train_examples=examples, holdout_examples=held_out)
        ready.metrics.extend(metric_kinds(getattr(self.model, "metrics", ())))
        await self.send(ready=ready)

    async def next_offer(self):
        """Returns the newest task."""
        while True:
            while self.to_evaluate:
                await self.evaluate(self.to_evaluate.pop(0))
            if self.request:
                request, self.request = self.request, None
                return request.offer
            await self.receive("offer", "evaluate")

    async def evaluate(self, version):
        """Evaluates a version on the held-out examples. The server asks a client that trains for the
        run's last version only, and one that only evaluates for every version."""
        weights = await self.fetch(version)
        if weights is None:
            gone = wire.Failed(version=version, reason=f"version {version} is gone")
            return await self.send(failed=gone)
        measured = dict(version=version, examples=getattr(self.model, "held_out", 0))
        if measured["examples"]:
            loss, values = await asyncio.to_thread(self.model.evaluate, weights)
            measured.update(loss=loss, metrics=metric_values(values))
        await self.send(evaluation=wire.Evaluation(**measured))

    async def train(self, offer):
        """Does one task and makes its update the pending upload."""
        if offer.optimizer not in ("", "sgd"):
            reason = shown(f"optimizer '{offer.optimizer}' is unknown here")
            return await self.send(failed=wire.Failed(task=offer.task, reason=reason))
        weights = await self.fetch(offer.version)
        if weights is None or self.request:
            return  # The version is gone, or there is a newer request.
        # Train in a thread, so that this coroutine can answer the server's pings meanwhile.
        measured = {}
        if offer.evaluate_holdout and getattr(self.model, "held_out", 0):
            held_loss, values = await asyncio.to_thread(self.model.evaluate, weights)
            measured = dict(has_holdout=True, holdout_examples=self.model.held_out)
            measured.update(holdout_loss=held_loss, holdout_metrics=metric_values(values))
        update, steps, loss = await asyncio.to_thread(self.model.train, weights, offer)
        print(f"round {offer.round}: trained, loss {loss:.4f}")
        try:
            payload, nmse = await asyncio.to_thread(self.encode, offer, update)
        except ValueError as error:  # The update has a wrong size or is not finite.
            print(f"round {offer.round}: {error}")
            return await self.send(failed=wire.Failed(task=offer.task, reason=str(error)))
        task = dict(task=offer.task, round=offer.round, version=offer.version, codec=offer.codec)
        result = dict(examples=self.model.examples, steps=steps, loss=loss, nmse=nmse)
        self.pending = make_upload(payload, **task, **result, **measured)
        kept.save(self.folder, self.run_key, self.pending, self.coder)

    def encode(self, offer, update):
        if self.coder is None:  # Without the library this client offers codec "none" only.
            return encode_plain(update, self.model.layout), 0.0
        seeds = offer.seed, offer.shared_seed or offer.seed
        return self.coder.encode(offer.codec, offer.round, seeds, update)

    async def fetch(self, version):
        """Returns the weights of a version, or None if the server no longer has it. With
        --downlink-codec the server sends deltas from the version that this client has."""
        have, weights = self.replica
        if have == version:
            return weights
        fetch = wire.Fetch(version=version)
        if self.coder and weights is not None and have < version:
            fetch.have_base, fetch.have_version = True, have
            fetch.have_digest = digest(weights)
        await self.send(fetch=fetch)
        header, _ = await self.receive("model", "failed")
        if header.HasField("failed"):
            return None
        model_bytes = 4 * sum(math.prod(shape) for _, shape in self.model.layout)
        if header.model.bytes > model_bytes:
            raise ConnectionError(f"{header.model.bytes} bytes for a model of {model_bytes} bytes")
        data = bytearray()
        while len(data) < header.model.bytes:
            _, part = await self.receive("chunk")
            data += part
            if len(data) > header.model.bytes or not part:
                raise ConnectionError("the chunks of a model have another size than announced")
        self.replica = NOTHING  # Until the digest is checked.
        if header.model.full:
            weights = np.frombuffer(data, np.float32)
        else:
            weights = await asyncio.to_thread(self.add_steps, weights, header.model.deltas, data)
        if digest(weights) != header.model.digest:
            raise ConnectionError(f"digest mismatch of model version {version}")
        weights.flags.writeable = False
        self.replica = version, weights
        return weights

    def add_steps(self, weights, deltas, data):
        begin = 0
        for delta in deltas:
            weights = weights + self.coder.decode(bytes(data[begin : begin + delta.bytes]))
            begin += delta.bytes
        return weights

    async def upload(self):
        """Uploads what is pending, and repeats that until it has a verdict."""
        while self.pending:
            begin, payload = self.pending
            await self.send(begin=begin)
            header, _ = await self.receive("resume", "verdict")
            if header.HasField("resume"):
                await self.send_chunks(header.resume)
                header, _ = await self.receive("verdict")
            if header.verdict.outcome == wire.Verdict.LATER:
                await asyncio.sleep(LATER_PAUSE_S)
                continue
            self.pending = None
            self.settle(header.verdict.outcome, payload)
            if self.request and self.request.offer.task == begin.task:
                self.request = None  # The server had repeated this task after a reconnection.
            outcome = wire.Verdict.Outcome.Name(header.verdict.outcome)
            print(f"round {begin.round}: {outcome} {shown(header.verdict.reason)}")

    def settle(self, outcome, payload):
        """With error feedback, an update that did not count goes back into the residual. If a second
        update in a row is refused, the residual is dropped, because it may be the reason."""
        if outcome == wire.Verdict.ACCEPTED:
            self.refusals = 0
        elif outcome == wire.Verdict.REFUSED:
            self.refusals += 1
        is_refused_again = outcome == wire.Verdict.REFUSED and self.refusals > 1
        if self.coder and is_refused_again:
            self.coder.residual = None
        elif self.coder and outcome != wire.Verdict.ACCEPTED:
            self.coder.take_back(payload)
        kept.save(self.folder, self.run_key, None, self.coder)

    async def send_chunks(self, resume):
        """Sends the payload from the first byte that the server does not have yet."""
        begin, payload = self.pending
        for at in range(resume.offset, len(payload), resume.chunk_bytes):
            part = payload[at : at + resume.chunk_bytes]
            await self.send(part, chunk=wire.Chunk(transfer=begin.task, offset=at))


def main():
    parser = argparse.ArgumentParser(description="A Tributary client in Python")
    state = "folder for the key, the certificate and unsent updates"
    parser.add_argument("--state", type=pathlib.Path, default="python-client-state", help=state)
    join = "join the server with this token first, unless this client has joined before"
    parser.add_argument("--join", metavar="TOKEN", help=join)
    parser.add_argument("--data", default="", help=".npz file with x [n, 784] and y [n], for logistic")
    evaluate_only = "evaluate every version; don't train"
    parser.add_argument("--evaluate-only", action="store_true", help=evaluate_only)
    parser.add_argument("--models", help="a Python file with your own make_model(NAME, DATA)")
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)
    try:
        if options.join:
            enrol.join(options.join, options.state)
        models = runpy.run_path(options.models)["make_model"] if options.models else make_model
        client = Client(options.state, options.data, models, options.evaluate_only)
        asyncio.run(client.run())
    except (Refused, OSError) as error:
        sys.exit(f"client.py: {shown(error)}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
