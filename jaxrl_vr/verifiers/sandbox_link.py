"""Messages between a program and its tests: eight bytes of length and a JSON text.

Runs inside the sandbox: standard library only.
"""

from __future__ import annotations

import os
import struct

_HEADER = struct.Struct("<Q")
_MAX_MESSAGE = 1 << 26  # bytes
_CHUNK = 1 << 20


class Ended(BaseException):
    """The other side is gone. No `except Exception` of a test keeps it from being seen."""


def send(link: int, text: str) -> None:
    """Sends one message."""
    body = text.encode("utf-8", "surrogatepass")
    rest = memoryview(_HEADER.pack(len(body)) + body)
    try:
        while rest:
            rest = rest[os.write(link, rest) :]
    except (BrokenPipeError, ConnectionResetError):
        raise Ended("the other side is gone") from None


def receive(link: int) -> bytes:
    """Waits for one message."""
    (size,) = _HEADER.unpack(_exactly(link, _HEADER.size))
    if size > _MAX_MESSAGE:
        raise Ended(f"a message of {size} bytes")
    return _exactly(link, size)


def _exactly(link: int, size: int) -> bytes:
    parts = []
    while size:
        try:
            part = os.read(link, min(size, _CHUNK))
        except ConnectionResetError:
            part = b""
        if not part:
            raise Ended("the other side is gone")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
