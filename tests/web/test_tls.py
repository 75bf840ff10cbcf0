"""TLS by name: the certificate is verified for the requested host, at the address that was checked."""

import datetime
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from web.conftest import WebTools
from web.site import Site, page, site

NAME = "secure.example"


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for NAME, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return certificate(tmp_path)


@pytest.fixture
def secure(files: tuple[Path, Path]) -> Iterator[Site]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    with site(context) as started_site:
        started_site.routes["*"] = page("<p>secret handshake")
        yield started_site


def web_that_trusts(cert: Path, port: int) -> WebTools:
    allowed = [f"{host}:{port}" for host in (NAME, "other.example", "127.0.0.1")]
    return WebTools(*allowed, tls=lambda: ssl.create_default_context(cafile=str(cert)))


def test_the_requested_name_is_verified(secure: Site, files: tuple[Path, Path]) -> None:
    web = web_that_trusts(files[0], secure.port)
    assert web.read(f"https://{NAME}:{secure.port}/")["content"] == "secret handshake"
    assert f"host: {NAME}:{secure.port}" in secure.heads[0].lower()


def test_a_certificate_for_another_name_is_refused(secure: Site, files: tuple[Path, Path]) -> None:
    web = web_that_trusts(files[0], secure.port)
    for host in ("other.example", "127.0.0.1"):
        assert "cannot be reached" in web.refusal(f"https://{host}:{secure.port}/")
    assert secure.visits == []


def test_a_self_signed_certificate_is_refused(secure: Site) -> None:
    web = WebTools(f"{NAME}:{secure.port}")
    assert "cannot be reached" in web.refusal(f"https://{NAME}:{secure.port}/")
    assert secure.visits == []


@pytest.mark.parametrize(
    "begun", [b"", b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 99\r\n\r\na"]
)
def test_tls_that_breaks_after_its_handshake_is_reported_in_a_sentence(
    secure: Site, files: tuple[Path, Path], begun: bytes
) -> None:
    def rubbish(connection: socket.socket, _head: str) -> None:
        connection.sendall(begun)
        with socket.socket(fileno=os.dup(connection.fileno())) as below:
            below.sendall(b"\x17\x03\x03\x00\x40" + b"\x99" * 64)

    secure.routes["/"] = rubbish
    secure.routes["/good"] = page("<p>good")
    web = web_that_trusts(files[0], secure.port)
    base_url = f"https://{NAME}:{secure.port}"
    result = web.execute("batch_fetch", urls=[f"{base_url}/", f"{base_url}/good"])
    assert [page_result["success"] for page_result in result.data["results"]] == [False, True]
    assert "sent no valid HTTP response, or closed the connection early" in result.data["results"][0]["error"]
