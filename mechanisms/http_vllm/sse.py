"""Server-sent events as engines write them: `data: JSON` and an empty line, cut anywhere."""

_PREFIX = b"data:"
DONE = b"[DONE]"
"""Payload of the last event."""


class Events:
    """Puts an answer's pieces together again and takes the events apart."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """Payloads of the events that are complete with `piece`; comments are left out."""
        start = len(_PREFIX)
        return [block[start:].lstrip() for block in self.blocks(piece) if block.startswith(_PREFIX)]

    def blocks(self, piece: bytes) -> list[bytes]:
        """Complete events as they came, without the empty line after each."""
        if self._rest:
            piece = self._rest + piece
        *blocks, self._rest = piece.split(b"\n\n")
        return blocks
