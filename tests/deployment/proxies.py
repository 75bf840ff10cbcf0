"""nginx and Caddy with the configurations of the documentation, on free ports of 127.0.0.1.

A test changes only what depends on the machine: ports, addresses of servers and files of certificates.
"""

import datetime
import ipaddress
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from process_environment import ROOT, free_port, plain_environ

DEPLOY = ROOT / "docs/operate/deploy"
NAME = "luxx.example.org"
"""The name of the server in the documentation."""

START_SECONDS = 20.0
PROXIES = ("nginx", "caddy")


class Certificate(NamedTuple):
    """A self-signed certificate for NAME and for 127.0.0.1."""

    chain: Path
    key: Path

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.chain))


def make_certificate(folder: Path) -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName(NAME), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    made = Certificate(folder / "fullchain.pem", folder / "privkey.pem")
    made.chain.write_bytes(certificate.public_bytes(pem))
    made.key.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return made


class ReverseProxy(NamedTuple):
    """A running proxy. `url` has NAME, which `client` and `connect` find at 127.0.0.1."""

    kind: str
    port: int
    plain_port: int
    certificate: Certificate

    @property
    def url(self) -> str:
        return f"https://{NAME}:{self.port}"

    def client(self, source: str = "127.0.0.2", **headers: str) -> httpx.Client:
        """A client with this address."""
        transport = _ByName(verify=self.certificate.trust(), local_address=source)
        return httpx.Client(base_url=self.url, transport=transport, timeout=30.0, headers=headers)

    def connect(self, source: str = "127.0.0.2") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10, source_address=(source, 0))


class _ByName(httpx.HTTPTransport):
    """Connects to 127.0.0.1 under the name of the URL."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.extensions = {**request.extensions, "sni_hostname": request.url.host}
        request.url = request.url.copy_with(host="127.0.0.1")
        return super().handle_request(request)


@contextmanager
def reverse_proxy(
    kind: str, servers: Sequence[str], folder: Path, changes: Sequence[tuple[str, str]] = ()
) -> Iterator[ReverseProxy]:
    """Starts the proxy in front of `servers` (`host:port`). `changes`: further replacements in its file."""
    program = shutil.which(kind, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        print(f"{kind} is not installed; .ci/install-programs installs it")
        pytest.skip(f"no {kind}")
    proxy = ReverseProxy(kind, free_port(), free_port(), make_certificate(folder))
    start = _nginx_command if kind == "nginx" else _caddy_command
    command, environ = start(program, proxy, servers, folder, changes)
    log = folder / f"{kind}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environ, stdout=output, stderr=output, cwd=folder)
    try:
        _await_start(proxy, process, log)
        yield proxy
    finally:
        process.terminate()
        process.wait(START_SECONDS)


def _await_start(proxy: ReverseProxy, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            proxy.connect().close()
            return
        except OSError:
            assert process.poll() is None, log.read_text("utf-8")
            assert time.monotonic() < until, log.read_text("utf-8")
            time.sleep(0.02)


def replaced(text: str, changes: Sequence[tuple[str, str]]) -> str:
    """The text after these replacements, each of which must apply."""
    for old, new in changes:
        assert old in text, f"{old!r} is not in the file"
        text = text.replace(old, new)
    return text


def _nginx_command(
    program: str,
    proxy: ReverseProxy,
    servers: Sequence[str],
    folder: Path,
    changes: Sequence[tuple[str, str]],
) -> tuple[list[str], dict[str, str]]:
    text = (DEPLOY / "nginx.conf").read_text("utf-8")
    # Tests have no free port of IPv6.
    text = re.sub(r"^ *listen \[::\].*\n", "", text, flags=re.MULTILINE)
    own = [
        ("server 127.0.0.1:8000;", " ".join(f"server {server};" for server in servers)),
        ("listen 80;", f"listen 127.0.0.1:{proxy.plain_port};"),
        ("listen 443 ssl http2;", f"listen 127.0.0.1:{proxy.port} ssl http2;"),
        ("/etc/ssl/luxx/fullchain.pem", str(proxy.certificate.chain)),
        ("/etc/ssl/luxx/privkey.pem", str(proxy.certificate.key)),
    ]
    (folder / "luxx.conf").write_text(replaced(text, [*own, *changes]))
    temporary = "\n".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        ("user root;\n" if os.geteuid() == 0 else "")
        + f"daemon off;\nworker_processes 1;\npid {folder}/nginx.pid;\nevents {{}}\n"
        # gzip is on in the file that Debian installs.
        + f"http {{\naccess_log off;\ngzip on;\n{temporary}\ninclude {folder}/luxx.conf;\n}}\n"
    )
    return [program, "-e", "stderr", "-c", str(folder / "nginx.conf")], plain_environ()


def _caddy_command(
    program: str,
    proxy: ReverseProxy,
    servers: Sequence[str],
    folder: Path,
    changes: Sequence[tuple[str, str]],
) -> tuple[list[str], dict[str, str]]:
    chain, key = proxy.certificate
    own = [("# tls /etc/ssl/luxx/fullchain.pem /etc/ssl/luxx/privkey.pem", f"tls {chain} {key}")]
    text = replaced((DEPLOY / "Caddyfile").read_text("utf-8"), [*own, *changes])
    options = f"{{\n\tadmin off\n\thttp_port {proxy.plain_port}\n\tdefault_bind 127.0.0.1\n}}\n"
    (folder / "Caddyfile").write_text(options + text)
    environ = plain_environ(
        SITE_NAME=f"{NAME}:{proxy.port}",
        SITE_SERVERS=" ".join(servers),
        HOME=str(folder),
        XDG_DATA_HOME=str(folder),
        XDG_CONFIG_HOME=str(folder),
    )
    return [program, "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")], environ
