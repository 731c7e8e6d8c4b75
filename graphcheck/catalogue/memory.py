"""GC4xx and GC5xx: addresses, lifetimes, outputs, pools and allocation."""

from graphcheck.catalogue.entry import Hazard

HAZARDS = (
    Hazard(
        "GC401", "static input rebound",
        "A new tensor takes the name; the graph goes on reading the old block.",
        "Stale results.", "self.x = batch", "self.x.copy_(batch)", "scgre",
    ),
    Hazard(
        "GC402", "input freed after capture",
        "The last reference to a tensor that the graph reads dies, and the block is handed to someone else.",
        "Garbage, or an illegal access.", "def capture(): x = make(); ...; return graph", "keep every input with the graph",
        "scgre",
    ),
    Hazard(
        "GC403", "weights, caches or state moved",
        "A reload, set_, .data = or offload gives the tensor other memory.",
        "Old weights or garbage.", "layer.weight.data = new", "layer.weight.copy_(new)", "scgre",
    ),
    Hazard(
        "GC404", "workspace grown after capture",
        "Shared scratch is replaced by a larger one; earlier graphs keep the old address.",
        "Corruption in a graph that nobody touched.", "if ws.numel() < need: ws = torch.empty(need)",
        "size it for the most before the first capture", "scgre",
    ),
    Hazard(
        "GC405", "persistent tensor born in the capture",
        "A lazily made workspace or cache entry lies in the graph's pool, in a block that replays reuse.",
        "It is overwritten at each replay.", "@lru_cache over torch.empty, first called while capturing",
        "create it before the capture", "scgre",
    ),
    Hazard(
        "GC406", "cached casts and derived weights",
        "Autocast or a quantiser made a derived tensor before the capture; the graph reads that.",
        "Weight updates are ignored.", "with autocast(): warm_up(); capture()", "enter autocast inside, without its cache",
        "scre",
    ),
    Hazard(
        "GC407", "host source of a copy freed",
        "A recorded host-to-device copy re-reads a host address at every replay.",
        "Garbage once other work reuses that memory.", "torch.tensor(v).pin_memory().to('cuda', non_blocking=True)",
        "keep the host buffer with the graph", "scgre",
    ),
    Hazard(
        "GC408", "host buffer overwritten too early",
        "The host fills the staging buffer for the next step while the last step's copy is still queued.",
        "Another step's values, depending on timing.", "pin.fill_(i); graph.replay()  # in a loop",
        "wait on an event, or use two buffers", "scgr",
    ),
    Hazard(
        "GC409", "memory nodes in the graph",
        "Stream-ordered allocations become nodes that allocate and free at each launch.",
        "Use after free, scratch that changes.", "cudaMallocAsync inside the region", "allocate before the capture", "cgr",
    ),
    Hazard(
        "GC410", "null pointer captured",
        "The storage was emptied before a kernel recorded its address.",
        "Illegal access, or work that is skipped.", "x.set_(empty); kernel(x)", "dispose last", "scge",
    ),
    Hazard(
        "GC411", "library workspace tied to the first graph",
        "A BLAS workspace lies in the pool of the graph that was captured first, and dies with it.",
        "Corruption after an unrelated graph is evicted.", "evict graphs one by one", "a workspace that outlives all graphs",
        "cgr",
    ),
    Hazard(
        "GC501", "output kept across replays",
        "Each replay writes the same output block.",
        "All collected outputs equal the last.", "outs.append(out)", "outs.append(out.clone())", "scre",
    ),
    Hazard(
        "GC502", "graphs of one pool overwrite each other",
        "Blocks that were free when one graph ended serve the next; either replay destroys the other's output.",
        "Wrong, depending on order.", "b.replay(); a.replay(); use(out_b)", "copy outputs out first, or separate pools",
        "cgre",
    ),
    Hazard(
        "GC503", "concurrent replay",
        "Graphs that share a pool, or one graph twice, run on two streams at once.",
        "A race.", "two threads replay from one pool", "serialise, or one pool each", "cge",
    ),
    Hazard(
        "GC504", "blocks handed out after capture",
        "An allocator without a graph pool gives away a block that replays still write.",
        "Unrelated tensors change.", "backup = copy(state)  # after the capture", "hold the capture's blocks", "cgr",
    ),
    Hazard(
        "GC505", "allocation during capture",
        "Addresses depend on the allocator's state, and the pool grows.",
        "Failures under caps; the first step to GC405.", "torch.empty(...) inside", "preallocated out= buffers", "scge",
    ),
    Hazard(
        "GC506", "memory growth with graphs",
        "Pools that cannot share, static inputs for every graph, frees deferred across streams.",
        "Out of memory, slowly.", "a pool for every bucket", "share pools; capture the largest first", "cg",
    ),
    Hazard(
        "GC507", "liveness differs at replay",
        "Something keeps an output alive that was dead when the graph was recorded.",
        "It is overwritten.", "keep an output in later iterations only", "the same lifetimes each run, or clone", "cre",
    ),
)
