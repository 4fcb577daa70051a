"""What changed between two files of the same size: a step of training changes few weights in bfloat16.

A file is read as words of 16 bits, the width of a bfloat16, the last one filled up with a zero. A delta is

    8 bytes   TRDELTA1
    8 bytes   size of the file in bytes, little-endian like all numbers here
    the rest  a stream of zstd, with a block for each BLOCK_WORDS words of the file:
                  4 bytes   the number n of words that differ
                  4 bytes   the number g of bytes of the gaps
                  g bytes   before each word that differs, how many do not: as LEB128
                  2 n bytes the exclusive or of the old word and the new one

To apply a delta a second time takes it back. It does not say what it is of: a manifest does, and the digest
of the files afterwards.
"""

import importlib
import struct
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trinity_db.errors import TrinityError

ENCODING: Final = "xor16-zstd"
MAGIC = b"TRDELTA1"
LEVEL = 1  # of zstd: higher ones take longer and save a few percent
BLOCK_WORDS = 1 << 22  # of a file in memory at a time: 8 MB
# A delta with a larger share of the file's size is not worth it: one that applies it also needs the old file.
MAX_SHARE = 0.5
SPARE_BYTES = 1 << 20  # before the share counts, since the compressor holds back what it has not written yet

Words = NDArray[np.uint16]


class Damaged(TrinityError):
    """A file is no delta, or none for this file."""


def write(old: Path, new: Path, delta: Path) -> bool:
    """Write what changed from an old file to a new one. Return False if that is not worth it.

    Raises:
        OSError: a file cannot be read or written.
    """
    size = new.stat().st_size
    if old.stat().st_size != size:
        return False
    compressor = importlib.import_module("zstandard").ZstdCompressor(level=LEVEL)
    with old.open("rb") as before, new.open("rb") as after, delta.open("wb") as file:
        file.write(MAGIC + struct.pack("<Q", size))
        with compressor.stream_writer(file, closefd=False) as stream:
            for start in range(0, size, 2 * BLOCK_WORDS):
                old_block, new_block = (_words(one.read(2 * BLOCK_WORDS)) for one in (before, after))
                stream.write(_block(old_block, new_block))
                if file.tell() > SPARE_BYTES + MAX_SHARE * (start + 2 * new_block.size):
                    return False
        return file.tell() <= MAX_SHARE * size


def apply(delta: Path, target: Path) -> None:
    """Change a file in place. It is spoilt where this raises.

    Raises:
        Damaged: the delta is damaged, or of a file of another size.
        OSError: a file cannot be read or written.
    """
    zstandard = importlib.import_module("zstandard")
    size = target.stat().st_size
    with delta.open("rb") as file, target.open("r+b", buffering=0) as changed:
        if file.read(len(MAGIC)) != MAGIC or file.read(8) != struct.pack("<Q", size):
            raise Damaged(f"{delta.name} is no delta of a file of {size} bytes.")
        try:
            with zstandard.ZstdDecompressor().stream_reader(file) as stream:
                for start in range(0, size, 2 * BLOCK_WORDS):
                    _apply_block(stream, changed, start, min(2 * BLOCK_WORDS, size - start))
                if stream.read(1):
                    raise Damaged(f"{delta.name} goes on behind its end.")
        except zstandard.ZstdError as error:
            raise Damaged(f"{delta.name} is damaged: {error}") from error


def _words(content: bytes) -> Words:
    return np.frombuffer(content + bytes(len(content) % 2), dtype="<u2")


def _block(old: Words, new: Words) -> bytes:
    """A block of the stream."""
    change = old ^ new
    places = np.flatnonzero(change)
    gaps = _leb128(np.diff(places, prepend=-1) - 1)
    return b"".join([struct.pack("<II", places.size, len(gaps)), gaps, change[places].tobytes()])


def _apply_block(stream: Any, changed: Any, start: int, length: int) -> None:
    """Change the bytes of a file from `start` on, by the next block of a stream."""
    count, num_bytes = struct.unpack("<II", _exactly(stream, 8))
    if count > (length + 1) // 2 or num_bytes > 4 * count:
        raise Damaged("A delta has more changes than its file has words.")
    places = np.cumsum(_numbers(_exactly(stream, num_bytes), count) + 1) - 1
    change = np.frombuffer(_exactly(stream, 2 * count), dtype="<u2")
    if not count:
        return
    changed.seek(start)
    content = bytearray(length + length % 2)
    if _read_into(changed, memoryview(content)[:length]) != length or places[-1] >= len(content) // 2:
        raise Damaged("A delta has changes behind the end of its file.")
    np.frombuffer(content, dtype="<u2")[places] ^= change
    changed.seek(start)
    view = memoryview(content)[:length]
    while len(view):  # a file without a buffer may take a part of it
        view = view[changed.write(view) :]


def _leb128(numbers: NDArray[np.int64]) -> bytes:
    """Numbers below 2^28, seven bits a byte, the low ones first; the highest bit says that more follow."""
    lengths = np.ones(numbers.size, dtype=np.int64)
    for bits in (7, 14, 21):
        lengths += numbers >= 1 << bits
    ends = np.cumsum(lengths)
    encoded = np.zeros(ends[-1] if ends.size else 0, dtype=np.uint8)
    for number in range(4):
        has = lengths > number
        more = (lengths[has] > number + 1) << 7
        encoded[ends[has] - lengths[has] + number] = (numbers[has] >> 7 * number) & 127 | more
    return encoded.tobytes()


def _numbers(encoded: bytes, count: int) -> NDArray[np.int64]:
    """As many numbers as `_leb128` has encoded.

    Raises:
        Damaged: there are others.
    """
    found = np.frombuffer(encoded, dtype=np.uint8).astype(np.int64)
    ends = np.flatnonzero(found < 128) + 1
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    lengths = ends - starts
    if ends.size != count or (count and (ends[-1] != found.size or lengths.max() > 4)):
        raise Damaged("A delta has gaps that cannot be read.")
    numbers = np.zeros(count, dtype=np.int64)
    for number in range(4):
        has = lengths > number
        numbers[has] |= (found[starts[has] + number] & 127) << 7 * number
    return numbers


def _exactly(stream: Any, num_bytes: int) -> bytes:
    content = b""
    while len(content) < num_bytes:
        more = stream.read(num_bytes - len(content))
        if not more:
            raise Damaged("A delta ends too early.")
        content += more
    return content


def _read_into(file: Any, view: memoryview) -> int:
    done = 0
    while done < len(view) and (count := file.readinto(view[done:])):
        done += count
    return done
