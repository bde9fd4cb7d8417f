"""Joining: from a join token to a key and a certificate. Once is enough: the folder then holds all
that a client needs, in files named like those of fl-client's identity."""

import base64
import hashlib
import http.client
import json
import socket
import ssl
import struct
import zlib

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

TIMEOUT_S = 15
TOKEN_TAIL = struct.Struct("<H32s8s16s4x")  # Port, SHA-256, id, secret, checksum.


class Refused(Exception):
    """What trying again would not mend; its text is for the user."""


def parse_token(token):
    """(host, port, SHA-256 of the authority's key, id, secret); see shared/identity/token.hpp."""
    version, _, body = token.strip().partition(".")
    try:
        fields = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
    except ValueError:
        fields = b""
    size = TOKEN_TAIL.size
    is_whole = len(fields) > size and struct.pack("<I", zlib.crc32(fields[:-4])) == fields[-4:]
    if version != "flj1" or not is_whole:
        raise Refused("this is not a join token, or not the whole of one: copy it again")
    return fields[1:-size].decode(), *TOKEN_TAIL.unpack(fields[-size:])


def find_authority(host, port, fingerprint):
    """The server's certificate authority (PEM), known by its key's SHA-256. Nothing secret has been
    sent yet, so this one connection may trust whoever answers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(socket.create_connection((host, port), TIMEOUT_S)) as tls:
        # From Python 3.13 on, SSLSocket has this method too.
        for certificate in tls._sslobj.get_unverified_chain():
            pem = certificate.public_bytes()
            key = x509.load_pem_x509_certificate(pem.encode()).public_key()
            form = serialization.PublicFormat.SubjectPublicKeyInfo
            spki = key.public_bytes(Encoding.DER, form)
            if hashlib.sha256(spki).digest() == fingerprint:
                return pem
    raise Refused(f"{host}:{port} is not the server that this token was made for")


def trusting(authority):
    """A TLS context for this authority's server. There is one, so no host name is compared."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(cadata=authority)
    return context


def join(token, folder):
    """Makes a key, has the server certify it, and stores the identity, unless there is one."""
    if (folder / "cert.pem").exists():
        return
    host, port, fingerprint, token_id, secret = parse_token(token)
    authority = find_authority(host, port, fingerprint)
    key = ec.generate_private_key(ec.SECP256R1())
    # The certificate gets the name that the token is for, whatever is asked for here.
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "client")])
    csr = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    request = {
        "token_id": token_id.hex(),
        "secret": base64.urlsafe_b64encode(secret).rstrip(b"=").decode(),
        "name": "",
        "csr": csr.public_bytes(Encoding.PEM).decode(),
    }
    https = http.client.HTTPSConnection(host, port, context=trusting(authority), timeout=TIMEOUT_S)
    headers = {"Content-Type": "application/json"}
    https.request("POST", "/v1/enroll", json.dumps(request), headers)
    response = https.getresponse()
    answer = json.loads(response.read())
    if response.status != 200:
        raise Refused(answer["error"])
    unencrypted = serialization.NoEncryption()
    key_pem = key.private_bytes(Encoding.PEM, serialization.PrivateFormat.PKCS8, unencrypted)
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    (folder / "key.pem").touch(mode=0o600)
    (folder / "key.pem").write_bytes(key_pem)
    (folder / "ca.pem").write_text(authority)
    server = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    (folder / "identity.json").write_text(json.dumps({"server": server}))
    (folder / "cert.pem").write_text(answer["certificate"])  # Last: with it the identity is whole.
    print(f"joined {server} as '{answer['name']}'")


def load(folder):
    """The server's address, and a TLS context that proves who this client is."""
    if not (folder / "cert.pem").exists():
        raise Refused(f"{folder} holds no identity: join first, with --join TOKEN")
    context = trusting((folder / "ca.pem").read_text())
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return json.loads((folder / "identity.json").read_text())["server"], context
