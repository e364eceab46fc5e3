"""A source's files as texts, split by file into training, validation and test."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from archsearch.studies.tasks.sources import Source, SourceFile

SEPARATOR = b"\n\n\n"
"""Between the documents of the training text; held-out documents are scored one by one."""

_HELD_OUT_SHARE = 0.05
_SPREAD = 16


@dataclass(frozen=True, slots=True)
class Document:
    """A file's text, named by its path inside the corpus."""

    name: str
    text: bytes


@dataclass(frozen=True, slots=True)
class Corpus:
    """A split corpus.

    data_hash: SHA-256 of the raw files read, one after the other in the order of their names; then of the caps, if any.
    """

    train: tuple[Document, ...]
    validation: tuple[Document, ...]
    test: tuple[Document, ...]
    data_hash: str


def read_corpus(source: Source, train_bytes: int | None, held_out_bytes: int | None) -> Corpus:
    """Read and split `source`; the caps bound the text of the training part and of each held-out part.

    A capped part keeps files in the order of their names' hashes; a capped held-out part is spread over sixteen files
    or more, or over all that it has.
    """
    parts = _split(source)
    raw: dict[str, bytes] = {}
    train = _read(source, parts["train"], train_bytes, 1, raw)
    validation = _read(source, parts["validation"], held_out_bytes, _SPREAD, raw)
    test = _read(source, parts["test"], held_out_bytes, _SPREAD, raw)
    digest = hashlib.sha256()
    for name in sorted(raw):
        digest.update(raw[name])
    if train_bytes is not None or held_out_bytes is not None:
        digest.update(f"{train_bytes} {held_out_bytes}".encode())
    return Corpus(train, validation, test, digest.hexdigest())


def joined(documents: Iterable[Document]) -> bytes:
    """The documents as one text."""
    return SEPARATOR.join(document.text for document in documents)


def _split(source: Source) -> dict[str, list[SourceFile]]:
    part_of = _part_of_groups(source)
    parts: dict[str, list[SourceFile]] = {"train": [], "validation": [], "test": []}
    for file in source.files:
        parts[part_of.get(file.group, "train")].append(file)
    return parts


def _part_of_groups(source: Source) -> dict[str, str]:
    """The held-out groups: as the source names them, else in hash order until each part has its share of the bytes."""
    if source.held_out is not None:
        return {group: part for part, groups in source.held_out.items() for group in groups}
    sizes: dict[str, int] = {}
    for file in source.files:
        sizes[file.group] = sizes.get(file.group, 0) + file.path.stat().st_size
    remaining = sorted(sizes, key=_hash)
    chosen: dict[str, str] = {}
    for part, reserved in (("validation", 2), ("test", 1)):
        taken = 0
        while len(remaining) > reserved and taken < _HELD_OUT_SHARE * sum(sizes.values()):
            group = remaining.pop(0)
            chosen[group] = part
            taken += sizes[group]
    return chosen


def _read(
    source: Source, files: Sequence[SourceFile], cap: int | None, spread: int, raw: dict[str, bytes]
) -> tuple[Document, ...]:
    """The texts up to `cap` bytes, of at least `spread` files where there are so many; adds what was read to `raw`."""
    if cap is None:
        return tuple(_document(source, file, None, raw) for file in files)
    most = max(1, cap // min(spread, len(files)))
    documents: list[Document] = []
    left = cap
    for file in sorted(files, key=lambda f: _hash(f.name)):
        if left > 0:
            documents.append(_document(source, file, min(left, most), raw))
            left -= len(documents[-1].text)
    return tuple(documents)


def _document(source: Source, file: SourceFile, most: int | None, raw: dict[str, bytes]) -> Document:
    raw[file.name] = file.path.read_bytes()
    return Document(file.name, source.clean(raw[file.name])[:most])


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()
