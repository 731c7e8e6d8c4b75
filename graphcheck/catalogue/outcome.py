"""GC8xx, GC9xx: randomness, several ranks, numerics, symptoms without a known cause, and the tool's own."""

from graphcheck.catalogue.entry import Hazard

HAZARDS = (
    Hazard(
        "GC801", "random seed baked",
        "A kernel takes seed or offset as numbers, or the generator is not registered.",
        "The same draws at every replay.", "kernel(x, seed=int(seed))", "seed and offset in device tensors", "scgre",
    ),
    Hazard(
        "GC802", "generator state touched inside capture",
        "Seeding and state queries are host operations.",
        "The capture fails.", "torch.manual_seed(0)  # inside", "seed before the capture", "sce",
    ),
    Hazard(
        "GC803", "random stream differs from eager",
        "The offset advances per graph and not per operation, or skipped work draws.",
        "Not bit-exact with eager.", "draw in a conditional body", "a generator state for each capture", "cr",
    ),
    Hazard(
        "GC901", "peer buffers not registered",
        "Addresses of captured collectives must be exchanged after capture; temporaries die first.",
        "Illegal access.", "capture outside the communicator's context", "enter it, and keep the tensors", "cgr",
    ),
    Hazard(
        "GC902", "ranks capture different graphs",
        "A rank-local flag or allocator luck changes what is captured or replayed.",
        "A hang.", "use_lora = any(local)", "make the decision collective; compare digests", "cgr",
    ),
    Hazard(
        "GC903", "teardown order",
        "A communicator waits for graphs that refer to it.",
        "A hang at exit.", "destroy_process_group() with live graphs", "reset graphs first", "sc",
    ),
    Hazard(
        "GC904", "communication set up inside capture",
        "The first use of a peer path allocates and registers.",
        "The capture fails.", "first collective while capturing", "warm up every collective", "c",
    ),
    Hazard(
        "GC905", "collective without its completion edge",
        "Asynchronous work is waited for in another graph.",
        "A hang or a race.", "work in one graph, wait in the next", "wait inside the same capture", "scg",
    ),
    Hazard(
        "GC951", "graph and eager pick different algorithms",
        "A library chooses by alignment, workspace or stream state.",
        "Different last bits.", "compare with percent tolerances", "pin the algorithm; compare bits", "cgr",
    ),
    Hazard(
        "GC960", "replay not deterministic",
        "Two replays from the same state differ: atomics, races, uninitialised memory, an unregistered generator.",
        "Results change from run to run.", "index_add_ on floats", "a deterministic reduction", "r",
    ),
    Hazard(
        "GC961", "wrong against the reference",
        "Captured and eager agree, and both are wrong.",
        "A plain bug, in a captured component.", "mask with <= instead of <", "fix the computation", "r",
    ),
    Hazard(
        "GC962", "undeclared write",
        "The region writes outside its outputs, mutates and scratch.",
        "Other requests' state changes.", "x.mul_(mask)  # an input", "write a declared buffer", "cre",
    ),
    Hazard(
        "GC963", "vacuous check",
        "Nothing was replayed, poison survived, a field has no influence, or most cases were refused.",
        "A green test that could not have failed.", "an output that nothing writes", "see the finding's advice", "r",
    ),
    Hazard(
        "GC964", "unexplained mismatch",
        "No intervention makes the difference go away.",
        "Captured and eager differ.", "", "read the evidence, then inspect the graph", "r",
    ),
    Hazard(
        "GC991", "unused suppression", "A comment ignores a code that is not reported there.", "Noise.",
        "# graphcheck: ignore[GC102]", "remove the comment", "s",
    ),
    Hazard(
        "GC992", "allowance without a reason", "A finding is allowed, and nobody says why.", "Noise.",
        "allow GC505", "give the reason", "s",
    ),
    Hazard(
        "GC993", "contract names an unknown argument", "@capture_safe names something that the function does not take.",
        "The contract checks nothing.", '@capture_safe(dynamic=("kv_len",))', "use the argument's own name", "s",
    ),
)
