# SPDX-License-Identifier: Apache-2.0
"""A collector of OpenTelemetry traces that misbehaves on demand, and a strict check of the JSON that
it gets: against the descriptors of OTLP's own .proto files (PyPI's opentelemetry-proto)."""

import base64
import http.server
import json
import math
import re
import ssl
import threading
import time

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor as Field
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

IDS = {"traceId": 32, "spanId": 16, "parentSpanId": 16}  # By name: how many hexadecimal digits.
INTEGERS_64 = {Field.TYPE_INT64, Field.TYPE_UINT64, Field.TYPE_FIXED64, Field.TYPE_SFIXED64}
INTEGERS_32 = {Field.TYPE_INT32, Field.TYPE_UINT32, Field.TYPE_FIXED32, Field.TYPE_ENUM}


def no_repetition(pairs):
    names = [name for name, _ in pairs]
    assert len(names) == len(set(names)), f"a name twice: {names}"
    return dict(pairs)


def check_value(value, field, where):
    """One value as the specification's JSON has it. protobuf's own reader takes more."""
    if field.type == Field.TYPE_MESSAGE:
        check_message(value, field.message_type, where)
    elif field.json_name in IDS:
        assert re.fullmatch(f"[0-9a-f]{{{IDS[field.json_name]}}}", value), f"{where}: {value}"
        assert int(value, 16) != 0, f"{where}: the id is zero"
    elif field.type in INTEGERS_64:
        assert isinstance(value, str) and re.fullmatch("-?[0-9]+", value), f"{where}: {value!r}"
    elif field.type in INTEGERS_32:
        assert type(value) is int, f"{where}: {value!r}"
    elif field.type == Field.TYPE_STRING:
        assert isinstance(value, str), f"{where}: {value!r}"
    elif field.type == Field.TYPE_BOOL:
        assert isinstance(value, bool), f"{where}: {value!r}"
    else:
        assert field.type == Field.TYPE_DOUBLE, f"{where}: no such value is known"
        assert isinstance(value, (int, float)) and math.isfinite(value), f"{where}: {value!r}"


def check_message(value, descriptor, where):
    assert isinstance(value, dict), f"{where}: {value!r}"
    fields = {field.json_name: field for field in descriptor.fields}
    for name, part in value.items():
        assert name in fields, f"{where} has no field {name}"
        here = f"{where}.{name}"
        if fields[name].label == Field.LABEL_REPEATED:
            assert isinstance(part, list), f"{here}: {part!r}"
            for each in part:
                check_value(each, fields[name], here)
        else:
            check_value(part, fields[name], here)


def ids_as_bytes(value):
    """Returns the JSON as protobuf's reader wants it: it takes bytes in base64, and OTLP has ids in
    hexadecimal."""
    if isinstance(value, list):
        return [ids_as_bytes(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: base64.b64encode(bytes.fromhex(part)).decode() if name in IDS else ids_as_bytes(part)
        for name, part in value.items()
    }


def parse(body):
    """The request as a message of protobuf."""
    told = json.loads(body.decode("utf-8"), object_pairs_hook=no_repetition)
    check_message(told, ExportTraceServiceRequest.DESCRIPTOR, "request")
    return json_format.ParseDict(ids_as_bytes(told), ExportTraceServiceRequest())


def values(attributes):
    """Names and values of a span's or resource's attributes."""
    found = {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
    assert len(found) == len(attributes), "an attribute twice"
    return found


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        """Clients that go away, or don't like the certificate, are what the tests want."""


class Collector:
    """Takes requests on a port, or on a free one. `answer(number)` says what the request of this number, from 1 on,
    gets: a status and headers; or None: never an answer."""

    def __init__(self, answer=lambda number: (200, {}), certificate=None, port=0):
        self.requests = []  # (when, path, headers, message) of each.
        self.bytes = []
        self.answer = answer
        self.is_over = threading.Event()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                collector.take(self)

            def log_message(self, *_):
                pass

        self.server = Server(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.server.socket = context.wrap_socket(
                self.server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self.server.server_address[1]
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, handler):
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        try:
            message = parse(body)
        except AssertionError as wrong:
            message = wrong
        self.bytes.append(len(body))
        self.requests.append((time.monotonic(), handler.path, handler.headers, message))
        answer = self.answer(len(self.requests))
        if answer is None:
            self.is_over.wait()
            return
        status, headers = answer
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", "2")
        handler.end_headers()
        handler.wfile.write(b"{}")

    def spans(self, first=0):
        """All spans of the requests from this one on."""
        found = []
        for _, _, _, message in list(self.requests)[first:]:
            if isinstance(message, AssertionError):
                raise message
            for of_resource in message.resource_spans:
                for of_scope in of_resource.scope_spans:
                    found += of_scope.spans
        return found

    def rounds(self, first=0):
        """The root spans by round."""
        roots = [span for span in self.spans(first) if not span.parent_span_id]
        found = {values(span.attributes)["tributary.round"]: span for span in roots}
        assert len(found) == len(roots), "a round twice"
        return found

    def close(self):
        self.is_over.set()
        self.server.shutdown()
        self.server.server_close()
