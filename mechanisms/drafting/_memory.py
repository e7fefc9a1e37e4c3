"""The draft store's arrays, and the file in shared memory that holds them.

Tokens stand in blocks of `BLOCK`, so that any document can go and any other take its room: with
one run of tokens per document, eviction by value would leave holes that fit nobody.  A position is
block * BLOCK + offset.  Half a block per document stays empty.

The file lies in /dev/shm and is reserved whole (a sparse one would kill its users with SIGBUS once
the file system is full).  Its writer holds an exclusive `flock` on it, which ends with the process
however it ends: a file without a lock was left by a writer that died, and the next writer of any
store removes it.  `multiprocessing.shared_memory` is no alternative before Python 3.13: there a
reader's exit unlinks the writer's segment.
"""

import errno
import fcntl
import mmap
import os
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steersman.estimators.errors import FleetError, InvalidInputError

FOLDER = Path("/dev/shm")
PREFIX, UNREADY = "steersman-drafts-", ".unready"

BLOCK_BITS = 5
BLOCK = 1 << BLOCK_BITS
"""Tokens of a block: 16 of 300 to 10,000 are lost per document, and a block's 16 bytes are few."""
LEVELS = 3
LONG, SHORT, ANY = range(LEVELS)
"""Chains a position stands in: of the same prompt by many and by few last tokens; of any prompt."""
CLASSES, AGES = 5, 8
"""Rows (`DraftClass`) and columns (age buckets, see `_kernel.AGE_BOUNDS`) of the feedback."""
LARGEST_CAPACITY = 1 << 30
"""Tokens; positions are 32-bit."""

MAGIC = 0x5354_4452_4654_0001
"""Says what the file is, and in which layout: counts up when the layout changes."""
HEADER_MAGIC, HEADER_BLOCKS, VERSION, DOCUMENTS, TOKENS, APPENDED, EVICTED = range(7)
"""Places in the header; VERSION is the trainer's weight version."""
HEADER = 8

OLDER, NEWER = range(2)
"""Neighbours of a position in a chain, `NONE` at an end."""
BLOCK_RECORD = np.dtype([("document", "i4"), ("before", "i4"), ("after", "i4"), ("filled", "i4")])
"""Slot of the document it belongs to, neighbouring blocks of that document, tokens in it."""
DOCUMENT = np.dtype(
    [
        ("prompt_key", "i8"),
        ("group_id", "i8"),
        ("version", "i8"),
        ("serial", "i8"),  # counts the appends; 0: the slot is empty
        ("tokens", "i8"),
        ("context", "i8"),  # of those, how many belong to the prompt
        ("first", "i8"),  # its first block
        ("accepted", "f8"),  # tokens of drafts it gave that were accepted; readers add to it
    ]
)
NONE = -1
"""No position, block or document."""


class Arrays(NamedTuple):
    """Everything a reader needs; all of it in the shared file."""

    header: NDArray[np.int64]
    tokens: NDArray[np.int32]
    links: NDArray[np.int32]
    """(capacity, LEVELS, 2) neighbours of each position in its chains."""
    heads: NDArray[np.int32]
    """(LEVELS, power of 2) newest position of each chain."""
    blocks: NDArray[np.void]
    documents: NDArray[np.void]
    """As many as blocks: a document has at least one."""
    feedback: NDArray[np.float64]
    """(CLASSES, AGES, 2) drafted tokens that were tried, and that were accepted; readers add to it.
    Two that add at once may lose a count: it is statistics."""


def _shapes(blocks: int) -> list[tuple[np.dtype[np.generic], tuple[int, ...]]]:
    capacity = blocks * BLOCK
    buckets = 1 << (capacity - 1).bit_length()
    return [
        (np.dtype("i8"), (HEADER,)),
        (np.dtype("i4"), (capacity,)),
        (np.dtype("i4"), (capacity, LEVELS, 2)),
        (np.dtype("i4"), (LEVELS, buckets)),
        (BLOCK_RECORD, (blocks,)),
        (DOCUMENT, (blocks,)),
        (np.dtype("f8"), (CLASSES, AGES, 2)),
    ]


def _aligned(size: int) -> int:
    """Rounded up to whole cache lines."""
    return -(-size // 64) * 64


def bytes_needed(blocks: int) -> int:
    """Size of the file."""
    return sum(_aligned(dtype.itemsize * int(np.prod(shape))) for dtype, shape in _shapes(blocks))


def arrays_in(buffer: mmap.mmap | bytearray, blocks: int) -> Arrays:
    """Views of the buffer."""
    views, offset = [], 0
    for dtype, shape in _shapes(blocks):
        count = int(np.prod(shape))
        views.append(np.frombuffer(buffer, dtype, count, offset).reshape(shape))
        offset += _aligned(dtype.itemsize * count)
    return Arrays(*views)


def clear(arrays: Arrays) -> None:
    """Make it an empty store; it was all zeros."""
    arrays.heads[:] = NONE
    for field in ("document", "before", "after"):
        arrays.blocks[field] = NONE
    arrays.header[HEADER_BLOCKS] = len(arrays.blocks)
    arrays.header[HEADER_MAGIC] = MAGIC


def private_arrays() -> Arrays:
    """The smallest empty store, of this process alone: for a drafter without a store."""
    arrays = arrays_in(bytearray(bytes_needed(1)), 1)
    clear(arrays)
    return arrays


def path_of(name: str) -> Path:
    """Where the store of this name lies."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name):
        raise InvalidInputError(
            f"draft store name {name!r}; valid: 1 to 100 letters, digits and . _ -"
        )
    return FOLDER / f"{PREFIX}{name}"


def create_mapping(name: str, blocks: int) -> tuple[int, mmap.mmap, Arrays]:
    """A new empty store: its locked descriptor, its mapping, its arrays.

    It is made ready under another name, so that nobody attaches to half of one.
    """
    path, size = path_of(name), bytes_needed(blocks)
    unready = path.with_name(f"{path.name}.{os.getpid()}{UNREADY}")
    _remove_abandoned()
    descriptor = os.open(unready, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.posix_fallocate(descriptor, 0, size)
        mapping = mmap.mmap(descriptor, size)
        arrays = arrays_in(mapping, blocks)
        clear(arrays)
        os.link(unready, path)
    except OSError as error:
        os.close(descriptor)
        if error.errno == errno.EEXIST:
            raise FleetError(f"the draft store {name!r} is in use by another writer") from None
        if error.errno == errno.ENOSPC:
            free = os.statvfs(FOLDER)
            raise FleetError(
                f"the draft store needs {size / 2**20:.0f} MiB in {FOLDER}, which has "
                f"{free.f_bavail * free.f_frsize / 2**20:.0f} MiB free: lower its capacity, "
                "or give the container more shared memory"
            ) from error
        raise
    finally:
        unready.unlink()
    return descriptor, mapping, arrays


def _remove_abandoned() -> None:
    """Unlink the stores of writers that died; readers keep what they mapped."""
    for path in FOLDER.glob(f"{PREFIX}*"):
        if path.name.endswith(UNREADY):
            continue
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError:  # gone, or another user's
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            pass  # in use
        finally:
            os.close(descriptor)


def map_existing(name: str) -> tuple[mmap.mmap, Arrays]:
    """The mapping of a store that a writer has created."""
    try:
        descriptor = os.open(path_of(name), os.O_RDWR)
    except FileNotFoundError:
        raise FleetError(f"no draft store {name!r} on this host: its writer creates it") from None
    try:
        size = os.fstat(descriptor).st_size
        if size < HEADER * 8:
            raise FleetError(f"{path_of(name)} is not a draft store")
        mapping = mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)
    header = np.frombuffer(mapping, np.int64, HEADER)
    blocks = int(header[HEADER_BLOCKS])
    fits = 0 < blocks <= LARGEST_CAPACITY // BLOCK and bytes_needed(blocks) == size
    if header[HEADER_MAGIC] != MAGIC or not fits:
        raise FleetError(f"{path_of(name)} is not a draft store of this version")
    return mapping, arrays_in(mapping, blocks)
