"""Deltas between two files of the same size: a training step changes few weights in 16 bits.

A file is read as 16-bit words, the width of a bfloat16, padded with a zero. A delta consists of

    8 bytes   TRDELTA2
    8 bytes   size of the file in bytes, little-endian like all numbers here
    for each BLOCK_WORDS words of the file
        4 bytes   the size of the frame
        a zstd frame with
            4 bytes   the number n of entries
            n bytes   distance of an entry from the previous one in words, from 1 to 255; the first is
                      counted from the word before the block
            n bytes   the low bytes of the changes, as zigzag(new - old) in 16 bits: mostly 1 or 2, the
                      neighbours of the old value. 0 where an entry only bridges a longer distance
            n bytes   the high bytes

Blocks are independent, so several are decoded at a time. A delta contains neither its base's name nor the
digest of the result: a manifest does.
"""

import importlib
import os
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from trinity_db.errors import TrinityError

ENCODING: Final = "gap16-zstd"
MAGIC = b"TRDELTA2"
LEVEL = 1  # zstd level: higher ones take longer and save nothing
BLOCK_WORDS = 1 << 19  # 1 MB, which stays in a core's cache while the deltas of a chain are applied to it
MOST_DISTANCE = 255  # largest distance of an entry
AT_A_TIME = 4  # blocks decoded concurrently
# Largest share of the file's size that is worth a delta, since applying it also needs the old file.
MAX_SHARE = 0.5
SPARE_BYTES = 1 << 20  # excess over the share at which writing stops early

Words = NDArray[np.uint16]


class Damaged(TrinityError):
    """A file is not a valid delta for this file."""


def write(old: Path, new: Path, delta: Path) -> bool:
    """Write the delta from an old file to a new one. Return False if it is not worth it.

    Raises:
        OSError: if a file cannot be read or written.
    """
    size = new.stat().st_size
    if old.stat().st_size != size:
        return False
    compressor = importlib.import_module("zstandard").ZstdCompressor(level=LEVEL)
    with old.open("rb") as before, new.open("rb") as after, delta.open("wb") as file:
        file.write(MAGIC + struct.pack("<Q", size))
        for start in range(0, size, 2 * BLOCK_WORDS):
            old_block, new_block = (_words(file.read(2 * BLOCK_WORDS)) for file in (before, after))
            frame = compressor.compress(_block(old_block, new_block))
            file.write(struct.pack("<I", len(frame)) + frame)
            if file.tell() > SPARE_BYTES + MAX_SHARE * (start + 2 * new_block.size):
                return False
        return file.tell() <= MAX_SHARE * size


class Applied:
    """The result of applying deltas to an old file, read block by block.

    Args:
        old: the file that the first delta is applied to.
        deltas: in the order in which they are applied.

    Raises:
        OSError: if a file cannot be read.
    """

    def __init__(self, old: Path, deltas: Sequence[Path]) -> None:
        self._old, self._deltas = old, deltas
        self.size = old.stat().st_size
        """Size in bytes."""

    def blocks(self) -> Iterator[memoryview]:
        """Yield the bytes of the file, in order.

        Raises:
            Damaged: if a delta is damaged, or belongs to a file of another size.
            OSError: if a file cannot be read.
        """
        with ExitStack() as opened, ThreadPoolExecutor(min(AT_A_TIME, os.cpu_count() or 1)) as pool:
            old = opened.enter_context(self._old.open("rb"))
            deltas = [_Frames(opened.enter_context(path.open("rb")), self.size) for path in self._deltas]
            decoding = deque[Future[memoryview]]()
            try:
                for start in range(0, self.size, 2 * BLOCK_WORDS):
                    content = old.read(min(2 * BLOCK_WORDS, self.size - start))
                    decoding.append(pool.submit(_decode, content, [frames.next() for frames in deltas]))
                    if len(decoding) > AT_A_TIME:
                        yield decoding.popleft().result()
                for frames in deltas:
                    frames.end()
                while decoding:
                    yield decoding.popleft().result()
            finally:
                for future in decoding:
                    future.cancel()


def apply(deltas: Sequence[Path], old: Path, new: Path) -> None:
    """Apply deltas to an old file and write the result, which is incomplete if this raises.

    Raises:
        Damaged, OSError: as `Applied`.
    """
    with new.open("wb") as file:
        for block in Applied(old, deltas).blocks():
            file.write(block)


class _Frames:
    """Iterator over the frames of a delta, one per block of a file of this size."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._name = file, Path(file.name).name
        if file.read(len(MAGIC)) != MAGIC or file.read(8) != struct.pack("<Q", size):
            raise Damaged(f"{self._name} is not a delta of a file of {size} bytes.")

    def next(self) -> bytes:
        length = self._file.read(4)
        size = struct.unpack("<I", length)[0] if len(length) == 4 else 0
        # The largest frame that `write` makes: zstd adds little to what it cannot compress.
        frame = self._file.read(size) if size <= 8 * BLOCK_WORDS + SPARE_BYTES else b""
        if not frame or len(frame) != size:
            raise Damaged(f"{self._name} ends too early.")
        return frame

    def end(self) -> None:
        if self._file.read(1):
            raise Damaged(f"{self._name} has trailing bytes.")


def _words(content: bytes) -> Words:
    return np.frombuffer(content + bytes(len(content) % 2), dtype="<u2")


def _block(old: Words, new: Words) -> bytes:
    """Return the content of a frame."""
    places = np.flatnonzero(old != new)
    change = (new[places] - old[places]).view(np.int16)
    bridges, distances = np.divmod(np.diff(places, prepend=-1) - 1, MOST_DISTANCE)
    ends = np.cumsum(bridges + 1) - 1
    count = int(ends[-1]) + 1 if ends.size else 0
    encoded = np.full(count, MOST_DISTANCE, dtype=np.uint8)
    encoded[ends] = distances + 1
    zigzag = np.zeros(count, dtype=np.uint16)
    zigzag[ends] = (change << 1) ^ (change >> 15)
    low, high = (part.astype(np.uint8).tobytes() for part in (zigzag & 255, zigzag >> 8))
    return b"".join([struct.pack("<I", count), encoded.tobytes(), low, high])


def _decode(content: bytes, frames: Sequence[bytes]) -> memoryview:
    """Make a block of the new file from that of the old one and the frames of the deltas."""
    words = np.concatenate([np.zeros(1, dtype="<u2"), _words(content)])  # entries are counted from before it
    zstandard = importlib.import_module("zstandard")
    decompressor = zstandard.ZstdDecompressor()  # not thread-safe
    for frame in frames:
        try:
            if not 4 <= zstandard.frame_content_size(frame) <= 4 + 3 * (words.size - 1):
                raise Damaged("A block of a delta is larger than its file.")
            changes = decompressor.decompress(frame)
        except zstandard.ZstdError as error:
            raise Damaged(f"A delta cannot be decompressed: {error}") from error
        _apply(changes, words)
    return words[1:].view(np.uint8).data[: len(content)]


def _apply(content: bytes, words: Words) -> None:
    """Apply a frame's content to a block that is preceded by one word."""
    (count,) = struct.unpack_from("<I", content)
    if len(content) != 4 + 3 * count:
        raise Damaged("A block of a delta has another size than it states.")
    if not count:
        return
    distances, low, high = np.frombuffer(content, np.uint8, 3 * count, 4).reshape(3, count)
    places = np.cumsum(distances, dtype=np.int64)
    if places[-1] >= words.size or not distances.all():
        raise Damaged("A block of a delta has changes outside of its file.")
    zigzag = low | high.astype(np.uint16) << 8
    words[places] += (zigzag >> 1) ^ -(zigzag & 1)
