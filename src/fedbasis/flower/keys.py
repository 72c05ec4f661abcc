"""Keys and certificates for a federation on one host; for real hosts, use your own.

A private certificate authority signs the server's certificate, and every node has its own key pair, by which the server
authenticates it. Private keys can be read only by their owner and are never in the app's folder, which is sent to all
nodes.
"""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY, CERTIFICATE, SERVER_KEY = "authority.pem", "server.pem", "server.key"
YEARS = 2
PEM = serialization.Encoding.PEM


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read, from its creation on; an error if the file exists."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """Write an authority's certificate, and the server's certificate and key; the authority's key is not stored."""
    authority = ec.generate_private_key(ec.SECP384R1())
    server = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "FedBasis federation")])
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    root = (
        _certificate(name, name, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA384())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    known = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    leaf = (
        _certificate(subject, name, server.public_key())
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(known, critical=False)
        .sign(authority, hashes.SHA384())
    )
    (folder / AUTHORITY).write_bytes(root.public_bytes(PEM))
    (folder / CERTIFICATE).write_bytes(leaf.public_bytes(PEM))
    write_private(folder / SERVER_KEY, _private_bytes(server, serialization.PrivateFormat.PKCS8))


def make_node_key(private: Path) -> None:
    """Write a node's private key, and next to it (``.pub``) the public key."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(private, _private_bytes(key, serialization.PrivateFormat.OpenSSH))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    private.with_suffix(".pub").write_bytes(public + b"\n")


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private_bytes(key: ec.EllipticCurvePrivateKey, kind: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(PEM, kind, serialization.NoEncryption())
