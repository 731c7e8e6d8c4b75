"""The stages of training a pair, each from the files that the one before it left."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from eagle3.m3.config import TargetConfig
from eagle3.m3.training.evaluation import evaluate_head, evaluate_target
from eagle3.m3.training.export import export_head, export_log, export_target, import_head, import_target, table
from eagle3.m3.training.head_trainer import HeadRecipe, train_head
from eagle3.m3.training.target_trainer import TargetRecipe, train_target
from eagle3.m3.training.text import Text

STAGES = ("target", "head", "evaluate")


@dataclass(frozen=True)
class Measures:
    """What is measured at the end.

    Args:
        length: tokens of a window for bits per byte.
        windows: most windows of each text.
        prompts: held-out prompts.
        prompt: tokens of each.
        new_tokens: tokens that the target adds to each.
    """

    length: int = 1024
    windows: int = 360
    prompts: int = 256
    prompt: int = 256
    new_tokens: int = 256


def run(
    folder: Path,
    text: Text,
    config: TargetConfig,
    target_recipe: TargetRecipe,
    head_recipe: HeadRecipe,
    measures: Measures,
    device: torch.device,
    say: Callable[[str], None],
    stages: Sequence[str] = STAGES,
    every: float = 10.0,
) -> dict[str, Any]:
    """The folder holds what the stages make; returns the log.

    After each stage its files and the log are complete, so that a run which is cut off leaves what it has.

    Args:
        folder: of the pair; stages that are not run are read from it.
        text: checked.
        config: of the target.
        target_recipe, head_recipe, measures: of the stages.
        device: where to train.
        say: takes progress lines.
        stages: some of `STAGES`.
        every: seconds between progress lines.

    Raises:
        OSError, TargetConfigRefused, WeightsMismatch: a stage that was left out has left nothing to go on from.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log: dict[str, Any] = _earlier(folder)
    log["text"] = {
        "sha256": text.sha256,
        "train_tokens": text.train.shape[0],
        "held_out_tokens": text.held_out.shape[0],
        "differing": list(text.differing),
    }
    log["machine"] = _machine(device)

    def timed(stage: str, work: Callable[[], dict[str, Any]]) -> None:
        if stage in stages:
            began = time.monotonic()
            log.update(work())
            log.setdefault("seconds", {})[stage] = round(time.monotonic() - began, 1)
            export_log(folder, log)
            say(f"{stage}  done in {log['seconds'][stage]} s, written to {folder}")

    def target_stage() -> dict[str, Any]:
        model, curve = train_target(config, text.train, target_recipe, device, say, every)
        export_target(folder, model)
        return {"target": {"recipe": asdict(target_recipe), **curve}}

    def head_stage() -> dict[str, Any]:
        head, curve = train_head(import_target(folder, device), text.train, head_recipe, say, every)
        export_head(folder, head, config, head_recipe)
        return {"head": {"recipe": asdict(head_recipe), **curve}}

    def evaluation_stage() -> dict[str, Any]:
        target = import_target(folder, device)
        head = import_head(folder, target, head_recipe)
        streams = {"held_out": text.held_out, "training": text.train}
        bits = evaluate_target(target, streams, measures.length, measures.windows)
        drafting = evaluate_head(
            target,
            head,
            text.held_out,
            prompts=measures.prompts,
            prompt=measures.prompt,
            new_tokens=measures.new_tokens,
        )
        return {"bits_per_byte": bits, "drafting": drafting, "measures": asdict(measures)}

    timed("target", target_stage)
    timed("head", head_stage)
    timed("evaluate", evaluation_stage)
    for line in table(log):
        say(line)
    return log


def _earlier(folder: Path) -> dict[str, Any]:
    """What stages of an earlier run have logged."""
    path = folder / "log.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def _machine(device: torch.device) -> dict[str, str]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"python": platform.python_version(), "torch": torch.__version__, "device": f"{device.type}, {name}"}
