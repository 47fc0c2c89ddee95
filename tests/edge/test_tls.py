"""TLS: the local certificate, and client certificates when they are asked for."""

from __future__ import annotations

import datetime
import pathlib
import stat
import subprocess

import pytest
from cryptography import x509

from rrpa_sidecar.edge import certificate
from tests.edge.support import Edge, FakeSidecar

NAMES = certificate.local_names("127.0.0.1")


@pytest.fixture
def pair(tmp_path: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    return tmp_path / "cert.pem", tmp_path / "key.pem"


def test_certificate_names_this_machine_and_the_listeners_host(
    pair: tuple[pathlib.Path, pathlib.Path],
) -> None:
    assert certificate.write_local_certificate(*pair, certificate.local_names("edge.example"))
    made = x509.load_pem_x509_certificate(pair[0].read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "edge.example"]
    assert {str(ip) for ip in names.get_values_for_type(x509.IPAddress)} == {"127.0.0.1", "::1"}


def test_key_is_its_owners_alone(pair: tuple[pathlib.Path, pathlib.Path]) -> None:
    certificate.write_local_certificate(*pair, NAMES)
    assert stat.S_IMODE(pair[1].stat().st_mode) == 0o600


def test_good_certificate_is_kept_and_any_other_replaced(
    pair: tuple[pathlib.Path, pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = certificate.write_local_certificate
    assert write(*pair, NAMES)
    assert not write(*pair, NAMES), "it fits"
    assert write(*pair, certificate.local_names("other.example")), "a name is missing"
    pair[0].write_text("half a fi")
    assert write(*pair, NAMES), "not a certificate"
    pair[1].unlink()
    assert write(*pair, NAMES), "no key"
    valid_days = certificate.VALID_DAYS
    monkeypatch.setattr(certificate, "RENEW_BEFORE_DAYS", valid_days - 1)
    assert not write(*pair, NAMES), "valid long enough"
    monkeypatch.setattr(certificate, "RENEW_BEFORE_DAYS", valid_days)
    assert write(*pair, NAMES), "about to expire"
    left = x509.load_pem_x509_certificate(pair[0].read_bytes()).not_valid_after_utc
    assert left > datetime.datetime.now(datetime.UTC)


def test_key_of_another_certificate_is_noticed(
    pair: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    certificate.write_local_certificate(*pair, NAMES)
    other = tmp_path / "other.pem", tmp_path / "other-key.pem"
    certificate.write_local_certificate(*other, NAMES)
    other[1].replace(pair[1])
    assert certificate.write_local_certificate(*pair, NAMES)


def test_caller_that_does_not_know_the_certificate_is_not_served(edge: Edge) -> None:
    done = subprocess.run(
        ["curl", "-sS", "-m", "5", edge.url("/v1/messages")], capture_output=True, check=False
    )
    assert done.returncode == 60, "curl: the peer's certificate cannot be checked"


def test_tls_1_1_is_refused(edge: Edge) -> None:
    reply = edge.curl("--tls-max", "1.1", path="/v1/messages")
    assert reply.exit_code == 35


def test_client_ca_lets_in_only_callers_with_its_certificates(
    sidecar: FakeSidecar, tmp_path: pathlib.Path
) -> None:
    good, bad = (tmp_path / name for name in ("good", "bad"))
    for who in (good, bad):
        who.mkdir()
        _client_certificate(who)
    with Edge(sidecar, envoy_client_ca=str(good / "cert.pem")) as edge:  # type: ignore[attr-defined]

        def call(*arguments: str) -> tuple[int, int]:
            reply = edge.post({"model": "x"}, *arguments)
            return reply.exit_code, reply.status

        identity = ["--cert", f"{good}/cert.pem", "--key", f"{good}/key.pem"]
        assert call(*identity) == (0, 200)
        assert call()[0] != 0, "no certificate"
        assert call("--cert", f"{bad}/cert.pem", "--key", f"{bad}/key.pem")[0] != 0


def _client_certificate(folder: pathlib.Path) -> None:
    """Self-signed, for clients; it is its own CA."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, folder.name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(made.public_bytes(encoding))
    (folder / "key.pem").write_bytes(
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
