"""One YAML file and `key=value` overrides become a typed, frozen dataclass.

    config = read_config(StudyConfig, Path("studies/configs/recall.yaml"), ["trials=20", "training.clip=0.5"])

`typed_data.to_plain` writes such a dataclass as plain data again, `typed_data.from_plain` reads it back.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from archsearch.errors import ConfigError, first_line
from archsearch.typed_data import configuration_words, from_plain, known_keys

T = TypeVar("T")


def read_config(kind: type[T], path: Path, overrides: Sequence[str] = ()) -> T:
    """Read a file as a dataclass of `kind`; each override is a dotted `key=value`, its value in YAML.

    Raises ConfigError, in one line, for a file that is missing or no YAML, unknown keys (naming the nearest known one),
    wrong types and values out of range.
    """
    where = str(path) if not overrides else f"{path} with {' '.join(overrides)}"
    try:
        merged = OmegaConf.merge(_load(path), _parse(overrides))
        data = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{where} cannot be read: {first_line(error)}") from error
    except TypeError as error:
        raise ConfigError(
            f"{where} cannot be read: an override must be a list where the file has a list, a mapping where it has a "
            "mapping; write it into the file"
        ) from error
    _check_kind(kind, cast(Mapping[object, object], data), path)
    return from_plain(kind, data, where)


def _check_kind(kind: type[object], data: Mapping[object, object], path: Path) -> None:
    """ConfigError where the file is the configuration of something else, a trial's for a study's or the reverse."""
    words = configuration_words(data, str(path))
    if words and not any(name in data and name in known_keys(kind) for name in ("space", "rule")):
        raise ConfigError(words)


def _load(path: Path) -> DictConfig:
    if path.suffix == ".py":
        raise ConfigError(f"a configuration is a YAML file; got {path}: name that in one, as rule: {path}")
    try:
        loaded = OmegaConf.load(path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise ConfigError(f"no configuration file {path}; give the path of a YAML file") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path} is no YAML: {_problem(error)}") from error
    except OSError as error:
        if error.errno is None:  # of OmegaConf, for what is neither a mapping nor a list
            raise ConfigError(f"{path} must hold keys and values; got one value") from error
        raise ConfigError(f"{path} cannot be read as YAML: {first_line(error)}") from error
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"{path} must hold keys and values; got a list")
    return loaded


def _parse(overrides: Sequence[str]) -> DictConfig:
    for text in overrides:
        if "=" not in text or text.startswith("="):
            raise ConfigError(f"an override must be key=value; got {text!r}")
    try:
        return OmegaConf.from_dotlist(list(overrides))
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"an override's value must be YAML: {' '.join(overrides)}: {_problem(error)}") from error


def _problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    place = f" at line {mark.line + 1}" if mark is not None else ""
    return f"{getattr(error, 'problem', None) or first_line(error)}{place}"
