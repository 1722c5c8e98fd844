"""The pieces of a frame that arrives in several chunks."""

from __future__ import annotations

from typing import Final, TypeAlias

Pieces: TypeAlias = "list[bytes | bytearray | memoryview]"

PIECE_BYTES: Final = 16 * 1024
"""Pieces of this size or more are kept unchanged."""


def add_piece(pieces: Pieces, piece: bytes | memoryview) -> None:
    """Add a piece. Large pieces are kept as they are, small ones are joined.

    So time and memory are linear in the number of bytes, however small the chunks are.

    >>> pieces = []
    >>> for piece in (b"a", b"b", bytes(PIECE_BYTES), b"c"):
    ...     add_piece(pieces, piece)
    >>> [len(piece) for piece in pieces]
    [2, 16384, 1]
    """
    if len(piece) >= PIECE_BYTES:
        pieces.append(piece)
    elif pieces and isinstance(last := pieces[-1], bytearray):
        last += piece
    else:
        pieces.append(bytearray(piece))
