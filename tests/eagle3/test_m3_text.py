"""The training text is the listed one, and whole modules are held out of it."""

from __future__ import annotations

import tarfile

import pytest
import torch

from eagle3.m3.config import BEGIN, END
from eagle3.m3.errors import TextDiffers, TextUnreadable
from eagle3.m3.training.text import (
    LISTING,
    belongs,
    differences,
    is_held_out,
    listing_of,
    load_text,
    read_sources,
    tiled,
    tokens,
    windows,
    write_archive,
)

FILES = {
    "argparse.py": b"import sys\n",
    "json/__init__.py": b"x = 1\n",
    "json/decoder.py": b"y = 2\n",
    "test/test_json.py": b"assert True\n",
    "encodings/cp1252.py": b"table = 0\n",
    "empty.py": b"",
    "config-3.11/makesetup.py": b"here\n",
    "readme.txt": b"no source\n",
}
KEPT = ["argparse.py", "json/__init__.py", "json/decoder.py"]


@pytest.fixture
def library(tmp_path):
    for name, content in FILES.items():
        path = tmp_path / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "lib"


@pytest.fixture
def listing(library):
    path = library.parent / "text.sha256"
    path.write_text(listing_of(read_sources(library)))
    return path


def test_sources_are_read_from_a_folder_a_zip_and_a_tar_alike(library, tmp_path):
    sources = read_sources(library)
    assert list(sources) == KEPT and sources["argparse.py"] == FILES["argparse.py"]
    write_archive(tmp_path / "text.zip", sources)
    with tarfile.open(tmp_path / "text.tar.gz", "w:gz") as tar:
        tar.add(library, arcname=".")
    assert read_sources(tmp_path / "text.zip") == sources
    assert read_sources(tmp_path / "text.tar.gz") == sources
    again = tmp_path / "again.zip"
    write_archive(again, sources)
    assert again.read_bytes() == (tmp_path / "text.zip").read_bytes()


def test_what_cannot_be_read_is_said(tmp_path):
    (tmp_path / "noise").write_bytes(b"no archive")
    for source in (tmp_path / "noise", tmp_path / "missing"):
        with pytest.raises(TextUnreadable, match="cannot be read as a folder, tar or zip archive"):
            read_sources(source)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(TextUnreadable, match="holds no library sources"):
        read_sources(tmp_path / "nothing")
    with pytest.raises(TextUnreadable, match="--write-listing"):
        load_text(tmp_path, listing=tmp_path / "absent")


def test_every_difference_from_the_listing_is_named(library, listing):
    assert load_text(library, listing=listing).differing == ()
    (library / "argparse.py").write_bytes(b"import os\n")
    (library / "json/decoder.py").unlink()
    (library / "zipapp.py").write_bytes(b"new\n")
    words = ["argparse.py has other contents", "json/decoder.py is missing", "zipapp.py is not listed"]
    assert differences(read_sources(library), listing.read_text()) == words
    with pytest.raises(TextDiffers, match=r"argparse\.py has other contents; json/decoder\.py is missing"):
        load_text(library, listing=listing)
    assert load_text(library, listing=listing, allow_other=True).differing == tuple(words)


def test_held_out_modules_are_in_one_part_only(library, listing):
    text = load_text(library, listing=listing)
    assert is_held_out("json/decoder.py") and is_held_out("json/__init__.py") and not is_held_out("argparse.py")
    assert text.train.tolist() == [BEGIN, *b"import sys\n", END]
    assert text.held_out.tolist() == [BEGIN, *b"x = 1\n", END, BEGIN, *b"y = 2\n", END]


def test_the_stored_listing_is_of_sources_only_and_holds_out_whole_modules():
    names = [line.partition("  ")[2] for line in LISTING.read_text(encoding="utf-8").splitlines()]
    assert len(names) > 500 and all(belongs(name) for name in names) and names == sorted(names)
    held = sorted({name.split("/")[0] for name in names if is_held_out(name)})
    assert {"json", "collections", "queue.py"} <= set(held) and len(held) == 11


def test_windows_follow_the_generator_and_tiles_do_not_overlap():
    stream = tokens([bytes(range(200))])
    first, again = (windows(stream, 16, 4, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, again) and bool((first.diff(dim=1) == 1)[:, 1:-1].all())
    tiles = tiled(stream, 16, 5)
    assert tiles.shape == (5, 16) and tiles.flatten().unique().numel() == 80
    assert tiled(stream, 16, 100).shape == (12, 16)
