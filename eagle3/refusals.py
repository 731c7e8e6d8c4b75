"""What an engine refuses when it is created: configurations that would fail, or be wrong, at some later step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata

from eagle3.errors import CreationRefused, NotServed, OverrideRefused, RequirementMissing
from eagle3.kv_manager import CacheConfig, Serving, cache_cost, split_budget
from eagle3.lengths import extra_kv_tokens

BACKENDS = ("msa", "reference")
# Of msa's decode step.
MOST_QO_LEN = 8
# Three layers are captured by default; with so few they would fall together.
LEAST_LAYERS = 6
TRITON = (3, 5)


@dataclass(frozen=True)
class EngineConfig:
    """What an engine is asked to be.

    Args:
        backend: "msa" plans on the device; "reference" is msa's eager path, planned on the host.
        graphs: whether decode steps are captured.
        draft_len: L; 0 without speculation.
        target_layers: layers of the target.
        capture_layers: layers whose inputs the head reads; None for the default three.
        target: caches of the target.
        draft: caches of the draft; None without one.
        serving: what else decides about caches.
        page_size: P.
        max_seq_len: longest sequence, tokens.
        max_batch: most requests in a step.
        overlap: whether steps are launched before the previous one is read.
        two_models: whether the draft is an engine of its own instead of a part of the target's step.
        multi_token_head: whether drafts come from a head of the target's checkpoint (MTP).
        tree: whether drafts form a tree.
        kv_dtype: of the caches: "bf16", "fp32", "fp8", "nvfp4".
        pipeline: stages of pipeline parallelism.
        budget: bytes for all caches; None if they are sized elsewhere.
        kernels: "portable" or "triton".
    """

    target: CacheConfig
    draft: CacheConfig | None = None
    backend: str = "msa"
    graphs: bool = True
    draft_len: int = 3
    target_layers: int = 60
    capture_layers: tuple[int, ...] | None = None
    serving: Serving = field(default_factory=Serving)
    page_size: int = 128
    max_seq_len: int = 4096
    max_batch: int = 8
    overlap: bool = False
    two_models: bool = False
    multi_token_head: bool = False
    tree: bool = False
    kv_dtype: str = "bf16"
    pipeline: int = 1
    budget: int | None = None
    kernels: str = "portable"


def check_creation(config: EngineConfig) -> None:
    """Pass if an engine of this configuration can be created and serve.

    Raises:
        NotServed: combinations that nothing here serves.
        BudgetInfeasible: the budget does not hold the caches.
        CreationRefused: any other objection, or several of different kinds; all of them are named.
        RequirementMissing: a package is absent or too old.
    """
    refused = [objection for check in _CHECKS for objection in check(config)]
    if len(refused) == 1:
        raise refused[0]
    if refused:
        kind = NotServed if all(isinstance(objection, NotServed) for objection in refused) else CreationRefused
        reasons = [str(objection) for objection in refused]
        words = "\n".join(f"  {number}. {reason}" for number, reason in enumerate(reasons, 1))
        raise kind(f"{len(reasons)} objections to this engine:\n{words}", reasons)
    if config.kernels == "triton":
        require("triton", TRITON)


def require(package: str, least: Sequence[int]) -> None:
    """Pass if a distribution is installed in this version or a later one.

    Raises:
        RequirementMissing: it is not.
    """
    wanted = ".".join(map(str, least))
    try:
        found = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise RequirementMissing(f"{package} >= {wanted} is needed, and not installed; install it") from None
    numbers = [int(part) if part.isdigit() else 0 for part in found.split("+")[0].split(".")]
    if numbers < list(least):
        raise RequirementMissing(f"{package} >= {wanted} is needed, {found} is installed; update it")


def refuse_overrides(subclass: type, base: type, sealed: Sequence[str]) -> None:
    """Pass if ``subclass`` leaves methods of ``base`` alone that hold an invariant; call it in ``__init_subclass__``.

    A step that restores what it saved does so for every subclass only if none replaces it.

    Raises:
        OverrideRefused: it replaces some.
    """
    replaced = [name for name in sealed if getattr(subclass, name) is not getattr(base, name)]
    if replaced:
        raise OverrideRefused(
            f"{subclass.__name__} replaces {', '.join(replaced)} of {base.__name__}, which saves and puts back state "
            "around what it calls; override what it calls instead"
        )


def _names(config: EngineConfig) -> Iterator[CreationRefused]:
    if config.backend not in BACKENDS:
        yield CreationRefused(f"backend {config.backend!r}, expected one of {', '.join(BACKENDS)}")
    if config.kernels not in ("portable", "triton"):
        yield CreationRefused(f"kernels {config.kernels!r}, expected portable or triton")
    if config.draft_len < 0 or 1 + config.draft_len > MOST_QO_LEN:
        yield CreationRefused(
            f"draft_len {config.draft_len}, expected 0..{MOST_QO_LEN - 1}: a decode step takes up to {MOST_QO_LEN} "
            "query tokens per request"
        )
    if config.draft_len and config.draft is None:
        yield CreationRefused(f"draft_len {config.draft_len} without a draft; pass the draft's caches, or draft_len=0")


def _reference(config: EngineConfig) -> Iterator[CreationRefused]:
    if config.backend == "reference" and config.graphs:
        what = "CUDA graphs and speculation" if config.draft_len else "CUDA graphs"
        yield CreationRefused(
            f'backend="reference" with {what}: it plans each step on the host, so a graph would replay the lengths of '
            'its capture; use backend="msa", or turn graphs off with graphs=False'
        )


def _capture_layers(config: EngineConfig) -> Iterator[CreationRefused]:
    if not config.draft_len:
        return
    layers, count = config.capture_layers, config.target_layers
    if layers is None and count < LEAST_LAYERS:
        yield CreationRefused(
            f"a target of {count} layers has no default capture layers, which need {LEAST_LAYERS} or more; "
            "pass capture_layers"
        )
    if layers is not None and (
        not layers or list(layers) != sorted(set(layers)) or not 0 <= layers[0] <= layers[-1] <= count
    ):
        yield CreationRefused(
            f"capture_layers {list(layers)}, expected ascending layers out of 0..{count}, whose inputs are captured "
            f"({count} is the last layer's output)"
        )


def _drafts(config: EngineConfig) -> Iterator[CreationRefused]:
    if config.tree and config.kv_dtype == "nvfp4":
        yield NotServed(
            "draft trees with an NVFP4 cache: accepted tokens move, their block scales do not; use fp8 or bf16"
        )
    elif config.tree:
        yield NotServed("draft trees: the loop drafts a chain; leave tree off")
    if config.two_models and config.multi_token_head and config.overlap:
        yield NotServed("a multi-token head in an engine of its own under overlap; turn overlap off, or use one model")
    elif config.two_models:
        yield NotServed(
            "a draft in an engine of its own: drafts are part of the target's step here; leave two_models off"
        )
    if config.kv_dtype not in ("bf16", "fp32"):
        yield NotServed(f"a {config.kv_dtype} cache: msa holds bf16 and fp32 here; use one of them")
    if config.pipeline > 1:
        yield NotServed(f"{config.pipeline} pipeline stages: target and draft caches live on one; use pipeline=1")


def _caches(config: EngineConfig) -> Iterator[CreationRefused]:
    try:
        target, draft, managers = cache_cost(config.target, config.draft, config.serving, config.page_size)
        if config.budget is not None:
            bytes_target, bytes_draft = split_budget(config.budget, target, draft)
    except CreationRefused as refusal:
        yield refusal
        return
    if config.budget is None:
        return
    extra = extra_kv_tokens(config.draft_len)
    steps = (2 if config.overlap else 1) * (1 + config.draft_len)
    pools = [("target", target, bytes_target, extra if managers.shared else 0)]
    if managers.draft is not None:
        pools.append(("draft", draft, bytes_draft, extra))
    short = []
    for role, cost, budget, more in pools:
        needed, held = config.max_seq_len + steps + more, cost.tokens(budget) // config.page_size * config.page_size
        if held < needed:
            short.append(f"{held} of {needed} tokens in {budget} bytes for the {role}")
    if short:
        yield CreationRefused(
            f"caches do not hold one request of max_seq_len {config.max_seq_len} ({', '.join(short)}); "
            "raise the budget or lower max_seq_len"
        )


_CHECKS: tuple[Callable[[EngineConfig], Iterator[CreationRefused]], ...] = (
    _names,
    _reference,
    _capture_layers,
    _drafts,
    _caches,
)
