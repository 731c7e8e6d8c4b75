"""What requests have said so far, and what a generation gives back."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from eagle3.acceptance import Acceptance


@dataclass
class Text:
    """A prompt and what follows it, on the host.

    Args:
        prompt: its tokens.
        most: tokens to generate.
        tokens: generated, as far as they are read.
        past: tokens with valid KV.
        drafts: L drafts behind the last token, while they are on the host.
    """

    prompt: list[int]
    most: int
    tokens: list[int] = field(default_factory=list)
    past: int = 0
    drafts: list[int] = field(default_factory=list)

    def cut(self, stop: Collection[int]) -> bool:
        """Nothing stands behind the last token asked for, or behind the first one of ``stop``; whether there is one."""
        del self.tokens[self.most :]
        last = next((place for place, token in enumerate(self.tokens) if token in stop), None)
        if last is not None:
            del self.tokens[last + 1 :]
        return last is not None


class Generated(NamedTuple):
    """Tokens of each prompt, and what the drafts were worth.

    Args:
        tokens: generated tokens of each prompt.
        acceptance: over all verify steps, with what the last one kept beyond the tokens that were asked for.
        steps: verify steps of the whole batch.
        replayed: how many of them were graphs.
    """

    tokens: list[list[int]]
    acceptance: Acceptance
    steps: int
    replayed: int
