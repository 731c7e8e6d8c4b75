"""A folder of the training becomes a pair that serves; one that does not fit is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from eagle3.engine import Engine
from eagle3.errors import CheckpointFormat, CheckpointMismatch, Eagle3Error, UnknownKernels
from eagle3.m3.config import TargetConfig
from eagle3.m3.errors import TargetConfigRefused, WeightsMismatch
from eagle3.m3.pair_files import load_pair
from eagle3.m3.training.export import export_head, export_target, import_target
from eagle3.m3.training.head_trainer import HeadRecipe, new_head
from eagle3.m3.training.model import TargetModel

torch.set_num_threads(1)
CONFIG, RECIPE = TargetConfig.tiny(), HeadRecipe.tiny()


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("exported")
    export_target(place, TargetModel(CONFIG, seed=4))
    model = import_target(place, torch.device("cpu"))
    export_head(place, new_head(CONFIG, model.state_dict(), torch.arange(4, 260, 2), RECIPE), CONFIG, RECIPE)
    return place


@pytest.fixture
def folder(exported, tmp_path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(exported, tmp_path / "pair"))


def change(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_an_exported_pair_serves(exported):
    target, head = load_pair(exported, dtype=torch.float32)
    assert target.config == CONFIG
    assert head.table.shape[0] == CONFIG.max_seq_len
    assert head.embed.data_ptr() == target.embed.data_ptr(), "the head's embedding is the target's"
    prompt = list(b"def main")
    plain = Engine(target, max_seq_len=64).generate([prompt], 8)
    assert Engine(target, head, draft_len=2, max_seq_len=64).generate([prompt], 8).tokens == plain.tokens


def test_weights_are_as_stored_unless_asked_otherwise(exported):
    stored, wide = load_pair(exported), load_pair(exported, dtype=torch.float32)
    assert (stored.target.embed.dtype, stored.head.weights.fc.dtype) == (torch.bfloat16, torch.bfloat16)
    assert (wide.target.embed.dtype, wide.head.weights.fc.dtype) == (torch.float32, torch.float32)
    assert torch.equal(stored.head.weights.fc.float(), wide.head.weights.fc)


def test_missing_files_are_all_named(folder):
    (folder / "target" / "model.safetensors").unlink()
    shutil.rmtree(folder / "head")
    with pytest.raises(CheckpointFormat) as refused:
        load_pair(folder)
    for words in ("target/model.safetensors", "head/config.json", "head/model.safetensors", "eagle3.m3.training --out"):
        assert words in str(refused.value)
    assert "target/config.json" not in str(refused.value)


@pytest.mark.parametrize(
    ("part", "fields", "kind", "words"),
    [
        ("head", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}}, CheckpointMismatch, "captured layers"),
        ("head", {"vocab_size": 261}, CheckpointMismatch, "embed_tokens.weight"),
        ("target", {"intermediate_size": 56}, WeightsMismatch, "gate_proj.weight is .48, 32., expected .56, 32."),
        ("target", {"model_type": "llama"}, TargetConfigRefused, "model_type 'llama'"),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit(folder, part, fields, kind, words):
    change(folder / part / "config.json", **fields)
    with pytest.raises(kind, match=words) as refused:
        load_pair(folder)
    assert isinstance(refused.value, Eagle3Error)


@pytest.mark.parametrize("part", ["target", "head"])
def test_torn_files(folder, part):
    file = folder / part / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(CheckpointFormat, match="no whole safetensors file"):
        load_pair(folder)
    (folder / "target" / "config.json").write_text("[")
    with pytest.raises(TargetConfigRefused, match="no JSON object"):
        load_pair(folder)


def test_kernels_that_there_are_not(exported):
    with pytest.raises(UnknownKernels, match="kernels 'other'"):
        load_pair(exported, "other")


def test_only_files_need_safetensors(exported):
    """In a process of its own, where it cannot be imported."""
    program = f"""
import sys
sys.modules["safetensors"] = None
import eagle3.generate, eagle3.component
from pathlib import Path
from eagle3.errors import CheckpointFormat
from eagle3.m3.pair_files import load_pair
try:
    load_pair(Path({str(exported)!r}))
except CheckpointFormat as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "cannot be read without safetensors; install torch-graphcheck[eagle3]" in done.stdout
