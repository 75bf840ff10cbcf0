"""What counts as an image that a model can be shown, and how much of them one message may carry. Pure."""

MAX_IMAGE_BYTES = 5 * 1024 * 1024
"""What the strictest vendor takes for one."""

MAX_IMAGES = 10
MAX_IMAGES_BYTES = 15 * 1024 * 1024
"""Of one message; in base64 the strictest vendor takes no more in one request."""

_IMAGES = ((b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpeg"), (b"GIF87a", "gif"), (b"GIF89a", "gif"))


def image_type(head: bytes) -> str | None:
    """The media type of an image a model can be shown, by its first bytes; None for anything else."""
    for magic, kind in _IMAGES:
        if head.startswith(magic):
            return f"image/{kind}"
    return "image/webp" if head[:4] == b"RIFF" and head[8:12] == b"WEBP" else None
