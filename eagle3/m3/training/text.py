"""The training text: CPython's own library sources, each listed with its sha256, held out by module."""

from __future__ import annotations

import hashlib
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch

from eagle3.m3.config import BEGIN, END
from eagle3.m3.errors import TextDiffers, TextUnreadable

LISTING = Path(__file__).with_name("text.sha256")
# Tests repeat themselves, encodings are generated tables, and the last two are written anew for each installation.
_LEFT_OUT = {"test", "tests", "idle_test", "encodings", "site-packages", "dist-packages", "__pycache__"}
_PER_INSTALLATION = ("_sysconfigdata", "config-")
# One module in sixteen, by the first byte of the hash of its name, so that nobody chose them.
_HELD_OUT_BELOW = 16
_MOST_NAMED = 10


@dataclass(frozen=True)
class Text:
    """Token streams of both parts: each file's bytes between `BEGIN` and `END`.

    Args:
        train, held_out: [n] int16, host.
        sha256: of the list of files, over what was really read.
        differing: files that are not as listed, each with what is wrong; empty unless that was allowed.
    """

    train: torch.Tensor
    held_out: torch.Tensor
    sha256: str
    differing: tuple[str, ...]


def module_of(path: str) -> str:
    """The top-level module that a file belongs to: "json" for "json/decoder.py"."""
    return PurePosixPath(path).parts[0].removesuffix(".py")


def is_held_out(path: str) -> bool:
    """Whether a file is kept from training, together with the whole module it belongs to."""
    return hashlib.sha256(module_of(path).encode()).digest()[0] < _HELD_OUT_BELOW


def belongs(path: str) -> bool:
    """Whether a library source is part of the text."""
    parts = PurePosixPath(path).parts
    return path.endswith(".py") and not any(part in _LEFT_OUT or part.startswith(_PER_INSTALLATION) for part in parts)


def read_sources(source: Path | None = None) -> dict[str, bytes]:
    """Contents of the library sources by their path below the library's folder, in the order of the paths.

    Args:
        source: a library's folder, or a tar or zip archive of one; this interpreter's own library by default.

    Raises:
        TextUnreadable: there is nothing to read.
    """
    source = Path(sysconfig.get_paths()["stdlib"]) if source is None else source
    try:
        found = dict(_files(source))
    except (OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise TextUnreadable(f"{source} cannot be read as a folder, tar or zip archive: {error}") from error
    kept = {path: found[path] for path in sorted(found) if belongs(path) and found[path]}
    if not kept:
        raise TextUnreadable(f"{source} holds no library sources; name the folder that holds argparse.py")
    return kept


def _files(source: Path) -> Iterator[tuple[str, bytes]]:
    if source.is_dir():
        for path in source.rglob("*.py"):
            yield path.relative_to(source).as_posix(), path.read_bytes()
    elif zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            for name in archive.namelist():
                if name.endswith(".py"):
                    yield name, archive.read(name)
    else:
        with tarfile.open(source) as tar:
            for member in tar:
                content = tar.extractfile(member) if member.name.endswith(".py") else None
                if content is not None:
                    yield member.name.removeprefix("./"), content.read()


def write_archive(path: Path, sources: Mapping[str, bytes]) -> None:
    """The file is a zip archive of the sources, the same bytes whenever it is written."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name, content in sources.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_LZMA)


def listing_of(sources: Mapping[str, bytes]) -> str:
    """Lines ``sha256  path``, as ``sha256sum`` writes and checks them."""
    return "".join(f"{hashlib.sha256(content).hexdigest()}  {path}\n" for path, content in sources.items())


def differences(sources: Mapping[str, bytes], listing: str) -> list[str]:
    """What distinguishes the sources from a listing, one sentence for each file."""
    listed = {path: digest for digest, _, path in (line.partition("  ") for line in listing.splitlines())}
    wrong = [
        f"{path} has other contents"
        for path, content in sources.items()
        if path in listed and hashlib.sha256(content).hexdigest() != listed[path]
    ]
    wrong += [f"{path} is missing" for path in listed if path not in sources]
    return wrong + [f"{path} is not listed" for path in sources if path not in listed]


def load_text(source: Path | None = None, *, listing: Path = LISTING, allow_other: bool = False) -> Text:
    """The text as tokens, checked against the listing.

    Args:
        source: as in `read_sources`.
        listing: what the text must be.
        allow_other: take other text too, and say in the result how it differs.

    Raises:
        TextUnreadable: there is no listing, or nothing to read.
        TextDiffers: it is not the listed text.
    """
    if not listing.is_file():
        raise TextUnreadable(f"{listing} is missing; write it with --write-listing")
    sources = read_sources(source)
    wrong = differences(sources, listing.read_text(encoding="utf-8"))
    if wrong and not allow_other:
        more = f" and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
        raise TextDiffers(
            f"the text is not the listed one: {'; '.join(wrong[:_MOST_NAMED])}{more}. Name the listed library or an "
            "archive of it with --text, or take this one with --other-text: the log will say so"
        )
    return Text(
        tokens(content for path, content in sources.items() if not is_held_out(path)),
        tokens(content for path, content in sources.items() if is_held_out(path)),
        hashlib.sha256(listing_of(sources).encode()).hexdigest(),
        tuple(wrong),
    )


def tokens(contents: Iterable[bytes]) -> torch.Tensor:
    """One stream int16 [n], host: each file's bytes between `BEGIN` and `END`."""
    mark = torch.tensor([BEGIN], dtype=torch.int16), torch.tensor([END], dtype=torch.int16)
    pieces = [torch.zeros(0, dtype=torch.int16)]
    for content in contents:
        pieces += [mark[0], torch.frombuffer(bytearray(content), dtype=torch.uint8).to(torch.int16), mark[1]]
    return torch.cat(pieces)


def windows(stream: torch.Tensor, length: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """``count`` windows int64 [count, length] that begin anywhere in the stream, on its device."""
    first = torch.randint(0, stream.shape[0] - length + 1, (count, 1), generator=generator)
    return stream[(first + torch.arange(length)).to(stream.device)].long()


def tiled(stream: torch.Tensor, length: int, most: int) -> torch.Tensor:
    """At most ``most`` windows int64 [n, length], back to back from evenly spread places, host."""
    whole = stream.shape[0] // length
    chosen = torch.linspace(0, whole - 1, min(most, whole)).long().unique()
    return stream[: whole * length].view(whole, length)[chosen].long()
