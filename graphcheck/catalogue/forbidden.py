"""GC1xx and GC2xx: what a capturing stream refuses, and the shape of the captured work."""

from graphcheck.catalogue.entry import Hazard

HAZARDS = (
    Hazard(
        "GC101", "explicit synchronisation",
        "The region waits for the device, but a capturing stream has not run anything that could be waited for.",
        "The capture fails with error 900, and everything after it with 901.",
        "torch.cuda.synchronize()  # inside the region", "synchronise before the capture and after the replay", "sce",
    ),
    Hazard(
        "GC102", "blocking read of a device value",
        "item(), tolist(), cpu(), numpy(), int(), printing: the host asks for a value that does not exist yet.",
        "The capture fails with error 900.",
        "n = int(kv_lens.max())", "keep kv_lens.max() as a tensor; read it after the replay", "sce",
    ),
    Hazard(
        "GC103", "device tensor built from host data",
        "torch.tensor(..., device='cuda') and blocking copies stage through pageable host memory.",
        "An error while capturing, or, in some versions, a copy that re-reads host memory nobody keeps.",
        "scale = torch.tensor([s], device='cuda')", "allocate before the capture, fill in place outside", "scge",
    ),
    Hazard(
        "GC104", "Python control flow on a device tensor",
        "if, while, assert, min() and max() call bool() on the tensor, which reads it on the host.",
        "The capture fails; if the value was read earlier, the branch is frozen instead (GC303).",
        "if scores.isnan().any(): scores = clean(scores)", "torch.where(scores.isnan(), cleaned, scores)", "sce",
    ),
    Hazard(
        "GC105", "indexing with host lists or scalars",
        "The index, or the assigned Python number, must first travel to the device.",
        "The capture fails, or behaves as GC103.",
        "rows = x[[0, 2]]", "rows = x.index_select(0, index_buffer)", "sce",
    ),
    Hazard(
        "GC106", "slice bounds from device tensors",
        "A slice needs integers, so each bound is read back.",
        "The capture fails with error 900.",
        "x[start:end]  # tensors", "index with arange and a mask", "sce",
    ),
    Hazard(
        "GC107", "data-dependent output shape",
        "nonzero, boolean-mask selection, unique, bincount read a count back before they can allocate the result.",
        "The capture fails with error 900.",
        "live = x[mask]", "torch.where(mask, x, 0), with the count kept on the device", "sce",
    ),
    Hazard(
        "GC108", "event or stream query while capturing",
        "The query asks whether recorded work has completed; it has not been submitted.",
        "The capture fails, or the answer means nothing.",
        "if event.query(): ...", "query before the capture or after the replay", "sce",
    ),
    Hazard(
        "GC109", "CUDA calls from other threads",
        "Loaders, watchdogs and profilers query or allocate while a global-mode capture forbids it process-wide.",
        "Captures fail now and then.",
        "capture while a pinning DataLoader iterates", "pause the thread, or capture in thread-local mode", "c",
    ),
    Hazard(
        "GC110", "pinned memory inside the region",
        "The host allocator may call the driver and poll events to recycle blocks.",
        "Captures fail now and then.",
        "buf = torch.empty(n, pin_memory=True)  # inside", "allocate pinned staging before the capture", "sce",
    ),
    Hazard(
        "GC111", "dependency on the legacy default stream",
        "Autograd accumulators and wrappers remember the stream of their first use.",
        "A captured backward fails with error 906.",
        "build DDP on the default stream, capture on another", "build and warm up on the capture stream", "c",
    ),
    Hazard(
        "GC201", "side stream without a fork",
        "Work on a stream that never waited for the capturing one is not part of the graph.",
        "The work is missing from every replay, or a later wait fails.",
        "with torch.cuda.stream(side): y = f(x)", "side.wait_stream(current) first", "scgre",
    ),
    Hazard(
        "GC202", "fork that is not joined",
        "Forked work has no path back to the capturing stream when the capture ends.",
        "The capture fails with error 904.",
        "fork, launch, return", "current.wait_stream(side) before the region ends", "scge",
    ),
    Hazard(
        "GC203", "waiting for work issued before the capture",
        "The graph would depend on something that is absent at replay.",
        "The capture fails with error 905.",
        "current.wait_stream(prefetch)  # inside", "wait before the capture", "sce",
    ),
    Hazard(
        "GC204", "work that ran but was not captured",
        "A launch went to another stream or device; it ran once, while capturing, and is in no graph.",
        "Replays skip it: outputs keep old contents.",
        "library_call(x)  # launches on its own stream", "hand the current stream to the library; fork and join", "scgre",
    ),
    Hazard(
        "GC205", "event misuse across the capture",
        "An ordinary event recorded in a capture is an edge and cannot be timed or waited for outside.",
        "Errors, or a missing wait.",
        "event.record() inside, event.elapsed_time() outside", "external events that live as long as the graph", "scge",
    ),
    Hazard(
        "GC206", "ordering hole around the graph",
        "Copy, replay and read run on different streams without a wait between them.",
        "Corruption that depends on timing.",
        "copy on stream A, replay on stream B", "one stream for copy, replay and read", "scr",
    ),
    Hazard(
        "GC207", "stream fan-out",
        "Many small forks make the runtime spread one graph over many streams.",
        "Slower replays and unreadable traces.",
        "fork the side branch first in every layer", "record the main branch first; reuse one side stream", "cg",
    ),
)
