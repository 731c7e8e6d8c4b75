"""GC3xx: host values, branches and plans frozen at capture."""

from graphcheck.catalogue.entry import Hazard

HAZARDS = (
    Hazard(
        "GC301", "scalar baked into a launch",
        "A Python number becomes a launch parameter and keeps its capture-time value for ever.",
        "Silently wrong: scale, temperature or threshold of the capture.",
        "logits / temperature  # a float", "temperature_buffer.fill_(t) outside, logits / temperature_buffer inside", "scgre",
    ),
    Hazard(
        "GC302", "length or extent baked",
        "A host integer fixes a loop bound, a grid, a slice width or a row stride.",
        "Right up to the captured length, then cut or shifted.",
        "attention(q, k[:, :longest])", "bake the capacity and mask by device lengths, or put the bound in the key", "scgre",
    ),
    Hazard(
        "GC303", "host branch frozen",
        "A Python flag or counter selects which kernels are recorded.",
        "Silently wrong for the other value.",
        "y = x + a if first else x - a", "torch.where on a device flag, or one graph per branch", "scgre",
    ),
    Hazard(
        "GC304", "kernel choice frozen by a heuristic",
        "Split counts, tactics and workspaces are computed on the host from capture-time sizes.",
        "Wrong tiles, out-of-bounds writes, or only slow.",
        "splits = heuristic(kv_lens_host.max())", "derive it from the capacity; one upper bound for all", "cgr",
    ),
    Hazard(
        "GC305", "host plan not refreshed",
        "A planner writes tables that the graph reads; the replay path updates lengths and forgets the plan.",
        "Silently wrong, or a hang.",
        "kv_lens.copy_(new); graph.replay()", "run the same planning before every replay", "scre",
    ),
    Hazard(
        "GC306", "pointer tables frozen",
        "Arrays of device pointers and tensor maps are built on the host at capture.",
        "Wrong or illegal accesses once shapes or routing change.",
        "torch.tensor([w.data_ptr() for w in weights])", "build the table over stable buffers, rebuild it in place", "scgr",
    ),
    Hazard(
        "GC307", "capture-aware code changes the mathematics",
        "A branch on is_current_stream_capturing() skips or replaces computation.",
        "The graph holds something else than eager.",
        "if torch.cuda.is_current_stream_capturing(): return out", "use the check for assertions only", "scre",
    ),
    Hazard(
        "GC308", "Python side effects do not replay",
        "Attributes, lists and counters change while capturing and never again.",
        "Stale state later on.",
        "self.last = hidden", "return it as an output, or write into a static buffer", "scre",
    ),
    Hazard(
        "GC309", "optimiser and schedule state on the host",
        "Learning rate, step count and loss scale are Python numbers unless the optimiser is capturable.",
        "Training drifts.",
        "capture Adam(...).step()", "a capturable optimiser with a tensor learning rate", "scr",
    ),
    Hazard(
        "GC310", "capture-time configuration leaks",
        "A flag or dummy value set for the capture is kept in metadata that replays use.",
        "Every request is served with the dummy's parameters.",
        "meta = copy(live); live.dummy = False", "clear the flag on the copy that is kept", "cre",
    ),
    Hazard(
        "GC311", "incomplete graph key",
        "The cache key of graphs omits something that the graph depends on.",
        "Another configuration's graph runs.",
        "graphs[batch].replay()", "put into the key whatever differential capture finds", "cre",
    ),
    Hazard(
        "GC312", "two layouts of one buffer",
        "Capture and refresh write the same buffer with different strides, offsets or order.",
        "Right for row 0 and for single requests, wrong behind them.",
        "capture at a uniform stride, refresh packed", "one function writes the layout for both", "scre",
    ),
    Hazard(
        "GC313", "hooks skipped or deferred",
        "Graphed callables replay as one block, so hooks inside it do not run.",
        "Hook behaviour is lost.",
        "hook a child of a graphed module", "hook the outermost module, or split the graph", "scre",
    ),
)
