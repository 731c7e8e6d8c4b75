"""Acceptance: which drafts the target keeps, and what it says instead, on the device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from eagle3.errors import ShapeMismatch
from graphcheck.contract import capture_safe

# (drafts, target's tokens, kv_lens, out_tokens, out_count), as `accept_greedy`; device only.
Acceptor = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]

# Zeros made one published model give NaN for its dummies; any legal id would do.
PADDING_TOKEN = 1

# Probabilities become whole numbers before they are summed up: their sum has then one value in whatever order the
# device adds, so an eager run and a replay draw the same token. fp32 keeps every bit down to 2 ** -29.
_UNIT = float(2**52)


@capture_safe(dynamic=("draft", "target", "kv_lens"), out=("out_tokens", "out_count"))
def accept_greedy(
    draft: torch.Tensor,
    target: torch.Tensor,
    kv_lens: torch.Tensor,
    out_tokens: torch.Tensor,
    out_count: torch.Tensor,
) -> None:
    """``out_count`` holds how many tokens each request keeps, ``out_tokens`` these tokens first; device only.

    A draft is kept while it and all before it equal what the target says at their place. Every token that is given out
    is the target's own, so this is lossless at any temperature, and only as good as the drafts in what it keeps.

    Args:
        draft: [B, L] int, device: drafts in target ids; L may be 0.
        target: [B, 1 + L] int, device: the target's token behind the last one and behind each draft.
        kv_lens: [B] int32, device, tokens: lengths of the verify step; 0 marks a padding row.
        out_tokens: [B, 1 + L] int, device; written: the target's tokens, the first ``out_count`` of them kept;
            `PADDING_TOKEN` in padding rows.
        out_count: [B] int32, device; written: 1..1+L with the bonus token, 0 in padding rows.

    Raises:
        ShapeMismatch: the tensors do not belong together.

    Source: SafeAILab/EAGLE, eagle/model/utils.py; NVIDIA/TensorRT-LLM, tensorrt_llm/_torch/speculative/interface.py.
    """
    draft_len = _check(draft, target.shape, kv_lens, out_tokens, out_count)
    kept = draft.eq(target.narrow(1, 0, draft_len)).to(torch.int32)
    _keep(kept, target, kv_lens, out_tokens, out_count)


@capture_safe(dynamic=("draft", "q", "p", "uniforms", "kv_lens"), out=("out_tokens", "out_count"))
def accept_rejection(
    draft: torch.Tensor,
    q: torch.Tensor,
    p: torch.Tensor,
    uniforms: torch.Tensor,
    kv_lens: torch.Tensor,
    out_tokens: torch.Tensor,
    out_count: torch.Tensor,
) -> None:
    """Drafts are kept so that what is given out is distributed as ``p``; device only, the same bits for the same input.

    Draft x of distribution q is kept if ``u * q(x) < p(x)``. In place of the first that is not, a token is drawn from
    ``max(p - q, 0)``; behind drafts that were all kept, one from p. Randomness comes in as numbers, so an eager run
    and a replay can be compared bit for bit. An arg-max draft has a one-hot q.

    Args:
        draft: [B, L] int, device: drafts in target ids; one outside the vocabulary is never kept. L may be 0.
        q: [B, L, V] fp32, device: distribution that each draft was drawn from; rows sum to 1.
        p: [B, 1 + L, V] fp32, device: the target's distributions, filtered as q was (temperature, top-k, top-p).
        uniforms: [B, L + 1] fp32, device: in [0, 1), one for each draft, the last for the token that is drawn.
        kv_lens, out_tokens, out_count: as in `accept_greedy`; behind the kept tokens stands the drawn one, repeated.

    Raises:
        ShapeMismatch: the tensors do not belong together.

    Source: Leviathan et al., Fast Inference from Transformers via Speculative Decoding, algorithm 1.
    """
    draft_len = _check(draft, p.shape[:2], kv_lens, out_tokens, out_count)
    vocabulary = p.shape[2]
    if tuple(q.shape) != (*draft.shape, vocabulary) or tuple(uniforms.shape) != (draft.shape[0], draft_len + 1):
        raise ShapeMismatch(
            f"q {tuple(q.shape)} and uniforms {tuple(uniforms.shape)} for drafts {tuple(draft.shape)} and p "
            f"{tuple(p.shape)}; expected q [B, L, V] and uniforms [B, L + 1]"
        )
    # Padding rows may hold anything, so the index is made legal first.
    inside = draft.clamp(0, vocabulary - 1).to(torch.int64)
    place = inside.unsqueeze(2)
    p_draft, q_draft = p.narrow(1, 0, draft_len).gather(2, place), q.gather(2, place)
    kept = (uniforms.narrow(1, 0, draft_len) * q_draft.squeeze(2) < p_draft.squeeze(2)) & draft.eq(inside)
    kept = kept.to(torch.int32).cumprod(1, dtype=torch.int32)
    drawn = _draw(p, q, kept.sum(1), uniforms.narrow(1, draft_len, 1))
    tokens = torch.cat((inside, drawn), 1)
    tokens = torch.where(torch.nn.functional.pad(kept, (0, 1)).bool(), tokens, drawn)
    _keep(kept, tokens, kv_lens, out_tokens, out_count)


def _draw(p: torch.Tensor, q: torch.Tensor, kept: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Token [B, 1] int64 drawn behind ``kept`` [B] drafts by ``uniform`` [B, 1], from max(p - q, 0) or from p."""
    batch, rows, vocabulary = p.shape
    place = kept.to(torch.int64).view(batch, 1, 1).expand(batch, 1, vocabulary)
    weights = p.gather(1, place).squeeze(1)
    if rows > 1:
        at_draft = q.gather(1, place.clamp(max=rows - 2)).squeeze(1)
        # Behind the last draft nothing was drafted.
        rest = weights - at_draft.masked_fill(kept.view(batch, 1) >= rows - 1, 0.0)
        rest = rest.clamp(min=0.0)
        # p <= q everywhere happens by rounding only, and then p is what is left.
        weights = torch.where((rest * _UNIT >= 1.0).any(1, keepdim=True), rest, weights)
    sums = (weights * _UNIT).to(torch.int64).cumsum(1)
    bound = (uniform.to(torch.float64) * sums.narrow(1, vocabulary - 1, 1)).floor().to(torch.int64)
    return sums.le(bound).sum(1, keepdim=True).clamp(max=vocabulary - 1)


def _keep(
    kept: torch.Tensor,
    tokens: torch.Tensor,
    kv_lens: torch.Tensor,
    out_tokens: torch.Tensor,
    out_count: torch.Tensor,
) -> None:
    """Counts and tokens, from which drafts are kept [B, L] int32; padding rows count 0."""
    real = kv_lens > 0
    out_count.copy_((kept.cumprod(1, dtype=torch.int32).sum(1) + 1) * real)
    out_tokens.copy_(tokens.masked_fill(~real.unsqueeze(1), PADDING_TOKEN))


def _check(
    draft: torch.Tensor,
    target_shape: torch.Size,
    kv_lens: torch.Tensor,
    out_tokens: torch.Tensor,
    out_count: torch.Tensor,
) -> int:
    """L, if the shapes belong together."""
    batch, draft_len = draft.shape
    expected = {
        "target": (target_shape, (batch, 1 + draft_len)),
        "kv_lens": (kv_lens.shape, (batch,)),
        "out_tokens": (out_tokens.shape, (batch, 1 + draft_len)),
        "out_count": (out_count.shape, (batch,)),
    }
    wrong = [f"{name} is {tuple(got)}, expected {want}" for name, (got, want) in expected.items() if tuple(got) != want]
    if wrong:
        raise ShapeMismatch(f"acceptance of drafts {tuple(draft.shape)}: {'; '.join(wrong)}")
    return draft_len


@capture_safe(dynamic=("narrow", "target_ids"), out=("out",))
def widen(narrow: torch.Tensor, target_ids: torch.Tensor, out: torch.Tensor) -> None:
    """``out`` holds draft distributions over the target's vocabulary, zero where the draft vocabulary has no token.

    Args:
        narrow: [B, L, Vd] fp32, device.
        target_ids: [Vd] int64, device: target id of each draft id, ``arange(Vd) + d2t``; no id twice.
        out: [B, L, V] fp32, device; written.
    """
    out.zero_()
    out.index_copy_(2, target_ids, narrow)
