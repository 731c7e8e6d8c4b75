"""NVIDIA's quick checklist for CUDA graphs in PyTorch, item by item, with the codes that an item is about."""

from __future__ import annotations

SOURCE = "https://docs.nvidia.com/dl-cuda-graph/torch-cuda-graph/quick-checklist.html"

CHECKLIST: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("no explicit synchronisation", ("GC101",)),
    ("no blocking device-to-host transfer, no printing", ("GC102",)),
    ("no device tensor creation from Python objects", ("GC103",)),
    ("no data-dependent control flow", ("GC104", "GC303")),
    ("no indexing with CPU tensors or lists", ("GC105",)),
    ("no slicing with tensor bounds", ("GC106",)),
    ("(implied by the sync-free page) dynamic output shapes", ("GC107",)),
    ("gradient tape on a side stream before capture", ("GC111",)),
    ("DDP/FSDP initialised on a side stream", ("GC111", "GC605")),
    ("libraries use the current stream", ("GC204",)),
    ("no stream/event query", ("GC108",)),
    ("no background-thread queries", ("GC109",)),
    ("no pinned allocation (hidden query)", ("GC110",)),
    ("DataLoader with pin_memory", ("GC109",)),
    ("NCCL watchdog", ("GC109",)),
    ("static topology: no dynamic control flow", ("GC303", "GC104")),
    ("gradient clipping without sync", ("GC104", "GC102")),
    ("early exit and adaptive inference: one graph per path", ("GC303", "GC311")),
    ("capture-aware code must not change computation", ("GC307", "GC310")),
    ("static inputs, updated by copy_", ("GC401", "GC402")),
    ("global tensors persistent", ("GC401", "GC403")),
    ("grouped GEMM / pointer arrays", ("GC306", "GC407")),
    ("autocast cache", ("GC406",)),
    ("CPU scalars as device tensors", ("GC301",)),
    ("learning rate and global step", ("GC309",)),
    ("custom generators registered", ("GC801",)),
    ("graph-safe RNG state calls", ("GC802",)),
    ("checkpointing without RNG preservation", ("GC802",)),
    ("partial graphing with non-reentrant checkpoint", ("GC802",)),
    ("torch.compile warmed up", ("GC601",)),
    ("fixed shapes, padding or bucketing", ("GC701", "GC302", "GC702", "GC703", "GC704", "GC705", "GC706")),
    ("MoE: graph static parts only", ("GC107", "GC701")),
    ("side streams fork", ("GC201",)),
    ("side streams join", ("GC202",)),
    ("no external dependency, or external events", ("GC203", "GC205")),
    ("no host state mutation that matters outside", ("GC308",)),
    ("per-replay CPU code moved outside", ("GC308", "GC305")),
    ("host callbacks for necessary CPU code", ("GC308", "GC407", "GC408")),
    ("no pinned alloc/free in global mode", ("GC110",)),
    ("device inputs not freed", ("GC402",)),
    ("CPU inputs kept alive", ("GC407",)),
    ("no cross-iteration reuse of outputs", ("GC501",)),
    ("shared pools: exposed intermediates", ("GC502",)),
    ("replay order equals capture order", ("GC502",)),
    ("no parallel replay with shared pools", ("GC503",)),
    (
        "reuse static inputs; chain outputs; pools cannot exchange; post-capture temporaries; fragmentation; deferred recycling; accumulator growth; suppressed free",
        ("GC506", "GC111"),
    ),
    ("warm-up on the side stream", ("GC605", "GC111", "GC602", "GC603", "GC604")),
    ("capture mode", ("GC109",)),
    ("module hooks", ("GC313",)),
    ("deferred gradient hooks", ("GC313",)),
    ("communicator lifecycle", ("GC903",)),
    ("pinned race", ("GC408",)),
    ("stream count", ("GC207",)),
    ("NCCL buffer registration", ("GC904",)),
)


def items_of(code: str) -> list[str]:
    """The items that a code belongs to, in the checklist's order."""
    return [item for item, codes in CHECKLIST if code in codes]
