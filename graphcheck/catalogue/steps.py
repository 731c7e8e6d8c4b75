"""GC6xx and GC7xx: warm-up, lazy work, buckets and padding."""

from graphcheck.catalogue.entry import Hazard

HAZARDS = (
    Hazard(
        "GC601", "compilation or lazy initialisation inside capture",
        "The first use compiles, autotunes, loads a module or creates a handle.",
        "The capture fails, or records the tuning.", "first call of a kernel while capturing",
        "run every variant once before", "sce",
    ),
    Hazard(
        "GC602", "work consumed by warm-up",
        "'if plan is None: build' runs in warm-up, so the builder never enters the graph.",
        "Right for the dummy lengths, wrong afterwards.", "warm_up(); capture()  # plan cached", "reset the lazy state first",
        "scgre",
    ),
    Hazard(
        "GC603", "one-time initialisation replayed",
        "The first call happens while capturing, so its zeroing or seeding is part of every replay.",
        "State is reset at each step.", "state = None; capture(step)", "initialise before the capture", "scre",
    ),
    Hazard(
        "GC604", "warm-up or capture mutates state",
        "Warm-up runs for real: lengths, caches and counters advance.",
        "A constant drift, or out-of-bounds at the first replay.", "for _ in range(2): step()",
        "save and restore every advanced tensor around warm-up", "scre",
    ),
    Hazard(
        "GC605", "too little warm-up",
        "Fewer calls than the slowest lazy path, or other shapes, or another stream.",
        "The capture fails, or GC602.", "one warm-up call", "until two calls in a row issue the same operations", "ce",
    ),
    Hazard(
        "GC606", "garbage collection during capture",
        "The collector destroys an old graph or event inside the region.",
        "The capture fails now and then.", "capture with cycles pending", "collect before, and keep the collector off", "ce",
    ),
    Hazard(
        "GC607", "capture does not execute",
        "Outputs read after capture and before the first replay hold old bytes.",
        "The first step is wrong.", "with graph: y = f(x); use(y)", "replay once before using y", "scre",
    ),
    Hazard(
        "GC608", "silent fallback",
        "Capture failed or was skipped, and the code goes on eagerly or with an older graph.",
        "Slow, or wrong.", "except RuntimeError: pass", "surface it; count replays", "scre",
    ),
    Hazard(
        "GC701", "shape changed under a fixed graph",
        "Grids and strides are those of the capture; extra elements are ignored.",
        "Truncation.", "x.copy_(big[:4])", "bucket and pad", "cre",
    ),
    Hazard(
        "GC702", "stale tail",
        "The refresh writes the live rows; rows behind keep the previous batch, and the graph processes them.",
        "Writes into live state, wrong sums.", "slots[:n].copy_(new)", "fill the tail on every refresh", "scre",
    ),
    Hazard(
        "GC703", "padding sentinel is a valid index",
        "-1 wraps to the last slot, 0 is a live one.",
        "One real request is corrupted.", "cache[slot] = v  # slot -1", "reserve a dummy slot", "scre",
    ),
    Hazard(
        "GC704", "unwritten memory leaks",
        "Padding rows hold NaN or old bytes; a shared reduction or scale spreads them.",
        "NaN or noise in live rows.", "scale = x.abs().amax()  # over padding too", "mask padding at load", "scre",
    ),
    Hazard(
        "GC705", "optional input omitted",
        "The refresh skips a buffer because the argument is absent this time.",
        "An earlier request's value is used.", "if bias is not None: buffer.copy_(bias)", "else: buffer.zero_()", "scre",
    ),
    Hazard(
        "GC706", "replay outside the capacity",
        "Lengths or indices exceed what buffers, tables or plans were sized for.",
        "Out of bounds, a hang, or truncation.", "replay at any length", "refuse on the host what does not fit", "cre",
    ),
)
