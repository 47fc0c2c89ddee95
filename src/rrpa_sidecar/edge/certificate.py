"""A certificate for this machine, so that TLS works before anyone has a real one.

It signs itself: clients are given the certificate file as their CA. It is for loopback and for
trying things out; a real deployment gives its own with --envoy-tls-cert and --envoy-tls-key.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import pathlib

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_DAYS = 365
RENEW_BEFORE_DAYS = 30
"""A certificate with less time left is made anew instead of kept."""

# Clocks of two machines differ; a certificate that is not valid yet is a puzzling error.
CLOCK_SKEW = datetime.timedelta(hours=1)

Names = tuple[x509.GeneralName, ...]


def local_names(host: str) -> Names:
    """Return the names that callers on this machine use, and `host` (a name or an address)."""
    names: dict[x509.GeneralName, None] = {
        x509.DNSName("localhost"): None,
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")): None,
        x509.IPAddress(ipaddress.ip_address("::1")): None,
    }
    try:
        names[x509.IPAddress(ipaddress.ip_address(host))] = None
    except ValueError:
        names[x509.DNSName(host)] = None
    return tuple(names)


def write_local_certificate(certificate: pathlib.Path, key: pathlib.Path, names: Names) -> bool:
    """Make both PEM files unless they are there, fit and are valid long enough.

    The key is readable by its owner only, from the moment it exists.

    Returns: True when they were made, False when the old ones stay.
    """
    if key.exists() and _is_good(certificate, key, names):
        return False
    private = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rrpa-sidecar local edge")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(private, hashes.SHA256())
    )
    secret = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write(key, secret, 0o600)
    _write(certificate, made.public_bytes(serialization.Encoding.PEM), 0o644)
    return True


def _is_good(certificate: pathlib.Path, key: pathlib.Path, names: Names) -> bool:
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        secret = serialization.load_pem_private_key(key.read_bytes(), None)
        covered = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, TypeError, x509.ExtensionNotFound):
        return False
    enough = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=RENEW_BEFORE_DAYS)
    return (
        found.not_valid_after_utc > enough
        and set(names) <= set(covered)
        and secret.public_key() == found.public_key()
    )


def _write(path: pathlib.Path, content: bytes, mode: int) -> None:
    """Replace `path` in one step, so that no reader sees half a file."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    os.replace(temporary, path)
