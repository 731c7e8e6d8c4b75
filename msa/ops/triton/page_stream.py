"""Tiles of pages on their way to shared memory, on Hopper: the copy engine brings them while others are computed."""

from __future__ import annotations

from collections import namedtuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

# Names that are others in Triton 3.6.
barrier = getattr(gl, "barrier", None) or gl.thread_barrier
_bring = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
_REINTERPRETS = gl.constexpr(hasattr(gl.shared_memory_descriptor, "reinterpret"))

# A walk: descriptors of caches [pages * heads * P, D], tiles [RING, P, D] with barriers [RING or more, 1] that say when they
# are there, where the pages of a list lie int32 [K, 1], and which of how many heads. A tile of keys and one of values alternate.
Stream = namedtuple("Stream", ["k_pages", "v_pages", "ring", "ready", "order", "heads", "head"])


@gluon.jit
def ones_of(bits):
    """How many bits of an int32 are set."""
    return gl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [bits], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def unseen(number):
    """The int32, through which the compiler does not see: what follows from it is not kept in registers around a loop."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [number], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def share(numbers):
    """Numbers int32 [N] in shared memory, one by one for `shared`."""
    LINE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    N: gl.constexpr = numbers.shape[0]
    line = gl.allocate_shared_memory(gl.int32, [N], LINE, numbers)
    if _REINTERPRETS:  # noqa: SIM108 - decided when it is compiled
        each = line.reinterpret(gl.int32, [N, 1], LINE)
    else:
        each = line._reinterpret(gl.int32, [N, 1], LINE)
    return each


@gluon.jit
def shared(each, place):
    """The number at ``place`` of `share`."""
    return gl.max(each.index(place).load(gl.BlockedLayout([1], [32], [gl.num_warps()], [0])), axis=0)


@gluon.jit
def new_barriers(RING: gl.constexpr, ROOM: gl.constexpr):
    """Barriers for a ring of ``RING`` tiles at most, with room for ``ROOM``."""
    ready = gl.allocate_shared_memory(gl.int64, [ROOM, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(RING):
        mbarrier.init(ready.index(slot), count=1)
    return ready


@gluon.jit
def open_stream(keys, values, ready, physical, heads, head, RING: gl.constexpr, P: gl.constexpr, D: gl.constexpr):
    """A stream of the pages at ``physical`` int32 [K], of which none is asked for yet."""
    ring = gl.allocate_shared_memory(keys.dtype, [RING, P, D], keys.layout)
    return Stream(keys, values, ring, ready, share(physical), heads, head)


@gluon.jit
def _ask(stream, tile, left, VALUES: gl.constexpr):
    """Have the keys or the values of the first entry in ``left`` brought as tile number ``tile``, if there is one.

    Args:
        left: int32, a bit for each entry of the list that is still to come.

    Returns:
        ``left`` without that entry.
    """
    RING: gl.constexpr = stream.ring.shape[0]
    P: gl.constexpr = stream.ring.shape[1]
    BYTES: gl.constexpr = P * stream.ring.shape[2] * 2
    wanted = left != 0
    first = left & -left
    page = shared(stream.order, ones_of(gl.where(wanted, first - 1, 0)))
    place = (page * stream.heads + stream.head) * P
    slot, ready = stream.ring.index(tile % RING), stream.ready.index(tile % RING)
    mbarrier.expect(ready, BYTES, pred=wanted)
    # Nothing may still be read where the tile comes to.
    barrier()
    if VALUES:
        _bring(stream.v_pages, [place, 0], ready, slot, pred=wanted)
    else:
        _bring(stream.k_pages, [place, 0], ready, slot, pred=wanted)
    return left ^ first


@gluon.jit
def begin(stream, left):
    """Ask for as many tiles as the ring holds; returns the entries whose keys, and those whose values, are left."""
    RING: gl.constexpr = stream.ring.shape[0]
    keys_left = left
    values_left = left
    for tile in gl.static_range(RING):
        if tile % 2 == 0:
            keys_left = _ask(stream, tile, keys_left, False)
        else:
            values_left = _ask(stream, tile, values_left, True)
    return keys_left, values_left


@gluon.jit
def close(stream):
    """After a walk, of which every tile was waited for: another stream may be opened with its barriers."""
    RING: gl.constexpr = stream.ring.shape[0]
    barrier()
    for slot in gl.static_range(RING):
        mbarrier.invalidate(stream.ready.index(slot))
        mbarrier.init(stream.ready.index(slot), count=1)


@gluon.jit
def came(stream, tile):
    """Where the tile [P, D] stands, once it is there: keys of step s are number 2 s, its values the next."""
    RING: gl.constexpr = stream.ring.shape[0]
    mbarrier.wait(stream.ready.index(tile % RING), tile // RING % 2)
    return stream.ring.index(unseen(tile % RING))


@gluon.jit
def ask_behind(stream, tile, keys_left, values_left, VALUES: gl.constexpr):
    """Have the next tile brought to where ``tile`` was, which is not read again; ``VALUES`` says what that held.

    Returns:
        as `begin`.
    """
    RING: gl.constexpr = stream.ring.shape[0]
    if (RING % 2 == 0) == VALUES:
        values_left = _ask(stream, tile + RING, values_left, True)
    else:
        keys_left = _ask(stream, tile + RING, keys_left, False)
    return keys_left, values_left
