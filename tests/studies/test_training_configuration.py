"""YAML becomes typed dataclasses, and every mistake is one line that names its key."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from archsearch.errors import ConfigError
from archsearch.spaces.options import Schedule, Training
from archsearch.studies.training.configuration import read_config
from archsearch.typed_data import from_plain, to_plain


@dataclass(frozen=True, slots=True)
class Wide:
    factor: int = 4


@dataclass(frozen=True, slots=True)
class LowRank:
    rank: int


@dataclass(frozen=True, slots=True)
class Example:
    rule: str
    training: Training = field(default_factory=Training)
    pairs: tuple[int, ...] | int = 4
    sources: Mapping[str, LowRank | Wide] = field(default_factory=dict[str, LowRank | Wide])
    limit: float | None = None
    folder: Path = Path("runs")


def written(folder: Path, text: str) -> Path:
    path = folder / "example.yaml"
    path.write_text(text)
    return path


def test_every_kind_of_field_is_read(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "rule: gdn\ntraining: {learning_rate: 1e-3, schedule: cosine, batch_tokens: 4e3}\n"
        "pairs: [2, 4]\nsources: {e: {low_rank: {rank: 8}}, b: {wide: {}}}\nlimit: 1_000\n",
    )
    assert read_config(Example, path) == Example(
        "gdn",
        Training(learning_rate=1e-3, schedule=Schedule.COSINE, batch_tokens=4000),
        (2, 4),
        {"e": LowRank(8), "b": Wide()},
        1000.0,
    )


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "rule: gdn\npairs: 3\n")
    read = read_config(Example, path, ["training.clip=0.5", "pairs=[1,2]", "limit=null"])
    assert (read.training.clip, read.pairs, read.limit) == (0.5, (1, 2), None)


def test_plain_data_and_back_is_the_same_value() -> None:
    value = Example("gdn", Training(schedule=Schedule.COSINE), (2, 4), {"e": LowRank(8), "b": Wide(2)})
    assert from_plain(Example, to_plain(value), "memory") == value


MISTAKES = {
    "rule: gdn\ntrainning: {learning_rate: 1}\n": (
        "unknown key trainning.learning_rate in FILE; did you mean training.learning_rate?"
    ),
    "rule: gdn\ntraining: {learning_rte: 1}\n": (
        "unknown key training.learning_rte in FILE; did you mean training.learning_rate?"
    ),
    "rule: gdn\nclip: 1\n": "unknown key clip in FILE; did you mean training.clip?",
    "rule: gdn\nzzz: 1\n": "unknown key zzz in FILE; known keys here: folder, limit, pairs, rule, sources, training",
    "rule: gdn\ntraining: {learning_rate: fast}\n": "training.learning_rate must be a number; got 'fast' in FILE",
    "rule: gdn\ntraining: {learning_rate: true}\n": "training.learning_rate must be a number; got True in FILE",
    "rule: gdn\ntraining: {clip: .inf}\n": "training.clip must be a finite number; got inf in FILE",
    "rule: gdn\nlimit: .nan\n": "limit must be a number or null; got nan in FILE",
    "rule: gdn\nfolder: ''\n": "folder must be a path; got '' in FILE",
    'rule: gdn\nfolder: "a\\0b"\n': "folder must be a path; got 'a\\x00b' in FILE",
    "rule: gdn\ntraining: {batch_tokens: 1.5}\n": "training.batch_tokens must be an integer; got 1.5 in FILE",
    "rule: gdn\ntraining: {schedule: wds}\n": ("training.schedule must be one of wsd, cosine; got 'wds' in FILE"),
    "rule: gdn\ntraining: {learning_rate: -1}\n": "training.learning_rate must be > 0; got -1.0 (in FILE)",
    "rule: gdn\ntraining: 3\n": "training must be a mapping of its options; got 3 in FILE",
    "rule: gdn\npairs: [1, x]\n": "pairs must be a list or an integer; got [1, 'x'] in FILE",
    "rule: gdn\nsources: {e: {rank: 8}}\n": (
        "sources.e must be a mapping with one key of low_rank, wide; got {'rank': 8} in FILE"
    ),
    "rule: gdn\nsources: {e: {low_rank: {}}}\n": "sources.e.low_rank.rank is missing in FILE",
    "pairs: 1\n": "rule is missing in FILE",
    "[1, 2]\n": "FILE must hold keys and values; got a list",
    "rule: }\n": "FILE is no YAML: did not find expected node content at line 1",
    "rule: ${nowhere}\n": "FILE cannot be read: Interpolation key 'nowhere' not found",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_one_clear_line(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_config(Example, path)
    assert str(caught.value) == MISTAKES[text].replace("FILE", str(path))


def test_a_missing_file_and_a_bad_override_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no configuration file .*absent.yaml; give the path of a YAML file"):
        read_config(Example, tmp_path / "absent.yaml")
    with pytest.raises(
        ConfigError, match=r"a configuration is a YAML file; got mine.py: name that in one, as rule: mine"
    ):
        read_config(Example, Path("mine.py"))
    with pytest.raises(ConfigError, match="an override must be key=value; got 'clip'"):
        read_config(Example, written(tmp_path, "rule: gdn\n"), ["clip"])
