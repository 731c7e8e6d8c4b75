"""``python -m eagle3.generate``: text on stdout, measures on stderr, one sentence for what it cannot do."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner, Result

from eagle3 import generate
from eagle3.m3.pair_files import STORED
from eagle3.m3.training.export import export_head, export_target, import_target
from eagle3.m3.training.head_trainer import HeadRecipe, new_head
from eagle3.m3.training.model import TargetModel

torch.set_num_threads(1)
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing where there is no GPU")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(generate.main, list(arguments))


def on_cpu(*arguments: str) -> Result:
    return run("--device", "cpu", *arguments)


@pytest.fixture(scope="module")
def plain() -> Result:
    return on_cpu("--random", "--prompt", "AB0", "--tokens", "12", "--draft-len", "0")


def test_text_goes_to_stdout_and_measures_to_stderr(plain):
    assert plain.exit_code == 0, plain.output
    assert len(plain.stdout.encode()) >= 12
    assert "tokens per second" in plain.stderr and "11, 0 of them graphs" in plain.stderr
    assert "AL" not in plain.stderr


@pytest.mark.parametrize("more", [["--draft-len", "3"], ["--draft-len", "2", "--batch", "2", "--backend", "reference"]])
def test_drafts_and_neighbours_leave_the_text_alone(plain, more):
    given = on_cpu("--random", "--prompt", "AB0", "--tokens", "12", "--eager", *more)
    assert given.exit_code == 0, given.output
    assert given.stdout == plain.stdout
    assert "AR" in given.stderr and "AL" in given.stderr


def test_a_prompt_from_a_file(plain, tmp_path):
    file = tmp_path / "prompt"
    file.write_bytes(b"AB0")
    given = on_cpu("--random", "--prompt-file", str(file), "--tokens", "12")
    assert (given.exit_code, given.stdout) == (0, plain.stdout)


def test_a_trained_pair(tmp_path, small_config):
    config = type(small_config).tiny()
    export_target(tmp_path, TargetModel(config, seed=4))
    model = import_target(tmp_path, torch.device("cpu"))
    head = new_head(config, model.state_dict(), torch.arange(4, 260, 2), HeadRecipe.tiny())
    export_head(tmp_path, head, config, HeadRecipe.tiny())
    given = on_cpu("--pair", str(tmp_path), "--tokens", "4")
    assert given.exit_code == 0, given.output
    assert "AL" in given.stderr


def test_bytes_that_form_a_character_are_written_together():
    class Texts:
        def __init__(self) -> None:
            self.texts = {0: generate_text([])}

    def generate_text(tokens):
        from eagle3.text import Text

        return Text([1], 9, tokens)

    written = []
    engine = Texts()
    voice = generate.Voice(0, lambda engine: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate.click, "echo", lambda text, nl=True: written.append(text))
        for tokens in ([0x61, 0xC3], [0x61, 0xC3, 0xA4, 0xFF], [0x61, 0xC3, 0xA4, 0xFF, 258]):
            engine.texts = {0: generate_text(tokens)}
            voice(engine)
        voice.finish()
    assert written == ["a", "ä\N{REPLACEMENT CHARACTER}", "", ""]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "a", "--prompt-file", __file__], "exclude each other"),
        (["--kernels", "triton", "--random"], "take --kernels portable"),
        (["--random", "--tokens", "2048"], "longer than the 2042 that this pair has positions for"),
        (["--pair", "nowhere"], "python -m eagle3.m3.training --out nowhere, or take an untrained one with --random"),
    ],
)
def test_what_it_is_told_wrong_is_said_in_one_sentence(arguments, words):
    given = on_cpu(*arguments)
    assert given.exit_code == 2
    assert given.stdout == "" and words in given.stderr
    assert given.stderr.startswith("Error: ") and given.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--tokens", "0"], ["--draft-len", "8"], ["--device", "tpu"], ["--batch", "0"]])
def test_options_out_of_range(arguments):
    given = on_cpu(*arguments)
    assert given.exit_code == 2 and arguments[0] in given.stderr


@pytest.mark.parametrize("name", ["empty", "absent"])
def test_the_stored_pair_is_the_default_and_its_absence_is_said(monkeypatch, tmp_path, name):
    (tmp_path / "empty").mkdir()
    (folder,) = (option for option in generate.main.params if option.name == "folder")
    assert folder.default == STORED and STORED.as_posix().endswith("eagle3/m3/pair")
    monkeypatch.setattr(folder, "default", tmp_path / name)
    given = on_cpu()
    assert given.exit_code == 2 and given.stdout == "" and f"{name} holds no trained pair" in given.stderr


@NO_GPU
@pytest.mark.parametrize("arguments", [["--graphs"], ["--device", "cuda"]])
def test_no_gpu(arguments):
    given = run("--random", *arguments)
    assert given.exit_code == 3
    assert given.stdout == "" and given.stderr.startswith(f"Error: {' '.join(arguments)} needs an NVIDIA GPU")
