"""Page selection over whole sequences in plain torch: the rule of ``msa.ops.select_pages``, and what teaches it."""

from __future__ import annotations

import torch

_NEVER = -1e9


def causal(rows: int, keys: int, device: torch.device) -> torch.Tensor:
    """Which of ``keys`` tokens each of the last ``rows`` of them sees, bool [S, N]."""
    position = torch.arange(keys, device=device)
    return position <= position[keys - rows :].unsqueeze(1)


def own_pages(rows: int, keys: int, page_size: int, device: torch.device) -> torch.Tensor:
    """The page that holds each row's own position, int64 [S, 1]."""
    return (torch.arange(keys - rows, keys, device=device) // page_size).unsqueeze(1)


def by_page(tokens: torch.Tensor, page_size: int, fill: float) -> torch.Tensor:
    """[..., N] as [..., J, P], filled up behind the last token."""
    short = -tokens.shape[-1] % page_size
    padded = torch.nn.functional.pad(tokens, (0, short), value=fill)
    return padded.reshape(*tokens.shape[:-1], -1, page_size)


def page_scores(index_q: torch.Tensor, index_k: torch.Tensor, page_size: int) -> torch.Tensor:
    """Largest dot product of each row with the index keys of each page, fp32 [B, Hkv, S, J]; -inf where none is seen.

    Args:
        index_q: [B, Hkv, S, D], the last S positions.
        index_k: [B, N, D], positions 0..N-1.
        page_size: P.
    """
    products = torch.matmul(index_q, index_k.unsqueeze(1).transpose(2, 3)).float()
    hidden = ~causal(index_q.shape[2], index_k.shape[1], index_k.device)
    return by_page(products.masked_fill(hidden, float("-inf")), page_size, float("-inf")).amax(-1)


def select_pages(scores: torch.Tensor, own: torch.Tensor, top_k: int) -> torch.Tensor:
    """Selected pages of every row, bool [B, Hkv, S, J]: its own page, then the best of those before it, K in all.

    Args:
        scores: [B, Hkv, S, J], -inf where a row sees nothing.
        own: [S, 1] int64.
        top_k: K.
    """
    ranked = scores.scatter(3, own.expand(*scores.shape[:3], 1), float("inf"))
    best = ranked.topk(min(top_k, scores.shape[3]), dim=3).indices
    chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(3, best, True)
    # A row with fewer valid pages than K was given pages behind its own.
    return chosen & (torch.arange(scores.shape[3], device=scores.device) <= own)


def token_mask(pages: torch.Tensor, keys: int, page_size: int) -> torch.Tensor:
    """Which of ``keys`` tokens each row attends to, bool [B, Hkv, S, N], from its selected pages [B, Hkv, S, J]."""
    tokens = pages.unsqueeze(4).expand(*pages.shape, page_size).flatten(3)[..., :keys]
    return tokens & causal(pages.shape[2], keys, pages.device)


@torch.no_grad()
def page_mass(q: torch.Tensor, k: torch.Tensor, page_size: int, scale: float) -> torch.Tensor:
    """Share of dense attention that falls on each page, mean over the query heads of a group, fp32 [B, Hkv, S, J].

    Args:
        q: [B, Hq, S, D], the last S positions.
        k: [B, Hkv, N, D].
        page_size: P.
        scale: what logits are multiplied with.
    """
    batch, heads, rows, dim = q.shape
    grouped = q.view(batch, k.shape[1], -1, dim)
    logits = torch.matmul(grouped, k.transpose(2, 3)).float().view(batch, k.shape[1], -1, rows, k.shape[2])
    logits = logits.mul_(scale).masked_fill_(~causal(rows, k.shape[2], k.device), float("-inf"))
    return by_page(logits.softmax(-1).mean(2), page_size, 0.0).sum(-1)


def index_loss(scores: torch.Tensor, mass: torch.Tensor, own: torch.Tensor, scale: float) -> torch.Tensor:
    """Cross-entropy of the index branch against the dense mass of the pages that compete, a scalar.

    A row's own page is always selected, so it takes no part; a row counts by the mass that is left.

    Args:
        scores: [B, Hkv, S, J], with gradients, -inf where a row sees nothing.
        mass: [B, Hkv, S, J].
        own: [S, 1] int64.
        scale: what scores are multiplied with.
    """
    competing = torch.arange(scores.shape[3], device=scores.device) < own
    shares = torch.where(competing, scores * scale, _NEVER).log_softmax(-1)
    mass = mass.masked_fill(~competing, 0.0)
    return -(mass * shares).sum() / mass.sum().clamp(min=1e-6)
