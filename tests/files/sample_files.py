"""Sample uploads: forms, images, PDFs."""

import io
import zlib
from typing import Any

from api.client import ApiClient
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

Json = dict[str, Any]
BOUNDARY = "the-boundary"


def png(size: int = 0) -> bytes:
    """The smallest PNG, made longer by `size` bytes without meaning."""
    head = b"\x89PNG\r\n\x1a\n"
    ihdr = b"IHDR" + (1).to_bytes(4, "big") * 2 + b"\x08\x00\x00\x00\x00"
    data = b"IDAT" + zlib.compress(b"\x00\x00")

    def chunk(body: bytes) -> bytes:
        return (len(body) - 4).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")

    return head + chunk(ihdr) + chunk(data) + chunk(b"IEND") + b"\x00" * size


def large_images(side: int) -> dict[str, bytes]:
    """The beginnings of images, by their names, whose headers declare this width and height; at most 16,384,
    except for the PNG."""
    two = side.to_bytes(2, "big")
    bits = (side - 1 | side - 1 << 14).to_bytes(4, "little")
    return {
        "large.png": png()[:16] + side.to_bytes(4, "big") * 2 + png()[24:],
        "large.gif": b"GIF89a" + side.to_bytes(2, "little") * 2 + b"\x00\x00\x00;",
        "large.jpg": JPEG[:20] + b"\xff\xc0\x00\x11\x08" + two * 2 + b"\x03" * 10,
        "large.webp": b"RIFF\x1a\x00\x00\x00WEBPVP8L\x0d\x00\x00\x00\x2f" + bits + b"\x00" * 9,
    }


JPEG = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + b"\x00" * 20
GIF = b"GIF89a\x01\x00\x01\x00\x00\x00\x00;"
WEBP = b"RIFF\x1a\x00\x00\x00WEBPVP8L" + b"\x00" * 14


def pdf(*pages: str, password: str | None = None) -> bytes:
    """A PDF with a line of text on each page."""
    return pdf_of(*(f"20 200 Td ({text}) Tj".encode() for text in pages), password=password)


def pdf_of(*contents: bytes, password: str | None = None) -> bytes:
    """A PDF whose pages have these drawing operations in Helvetica, compressed."""
    writer = PdfWriter()
    name = NameObject
    font = DictionaryObject(
        {
            name("/Type"): name("/Font"),
            name("/Subtype"): name("/Type1"),
            name("/BaseFont"): name("/Helvetica"),
        }
    )
    for content in contents:
        page = writer.add_blank_page(300, 300)
        page[name("/Resources")] = DictionaryObject({name("/Font"): DictionaryObject({name("/F1"): font})})
        stream = DecodedStreamObject()
        stream.set_data(b"BT /F1 12 Tf " + content + b" ET")
        page[name("/Contents")] = writer._add_object(stream.flate_encode())
    if password is not None:
        writer.encrypt(password, algorithm="AES-256")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def put(person: ApiClient, name: str, data: bytes, folder: str = "") -> Json:
    """Uploads a file. Returns it as in the answer."""
    form = {"path": folder} if folder else None
    uploaded: Json = person.good("POST", "/files", files={"file": (name, data)}, data=form)
    return uploaded


def list_folder(person: ApiClient, folder: str = "") -> list[Json]:
    items: list[Json] = person.good("GET", "/files", params={"path": folder, "page_size": 100})["items"]
    return items


def clear(person: ApiClient) -> None:
    """Empties the workspace."""

    def empty(folder: str) -> None:
        for entry in list_folder(person, folder):
            if entry["is_folder"]:
                empty(entry["path"])
            person.good("DELETE", f"/files/{entry['id']}")

    empty("")


def part(name: str, data: bytes, field: str = "file") -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n\r\n'
    return head.encode() + data + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()
FORM = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
