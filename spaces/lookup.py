"""From what a user types to a space: a ready one, `path/to/file.py` (its SPACE) or `path/to/file.py:NAME`, a YAML file,
or the mapping that such a file holds.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from archsearch.dsl import Rule
from archsearch.errors import RuleError, SpaceError, first_line
from archsearch.spaces.plain import read_space
from archsearch.spaces.space import Space
from archsearch.typed_data import configuration_words
from archsearch.userfile import find_value, load_value, names_a_file

READY = ("delta_family", "erases", "decays", "hybrids", "hyperparameters")
"""The ready spaces: each is the SPACE of the module of that name beside this one."""


def find_space(given: str | Mapping[str, Any], where: str = "space") -> Space:
    """The space that a text names, or that a mapping of `where` holds.

    Raises SpaceError in one line: an unknown name with the nearest known one, a file that is missing, fails, or holds
    no space; and whatever `read_space` refuses.
    """
    if isinstance(given, Mapping):
        return read_space(given, where)
    if names_a_file(given):
        return _of_python(given)
    if given.endswith((".yaml", ".yml")):
        data = _read_yaml(Path(given))
        words = configuration_words(data, given)
        if words:
            raise SpaceError(f"a space has a rule and no tasks; {words}")
        return read_space(data, given)
    if given not in READY:
        nearest = "".join(f"; did you mean {name}?" for name in get_close_matches(given, READY, n=1))
        raise SpaceError(
            f"unknown space {given!r}{nearest or '.'} Ready spaces: {', '.join(READY)}; "
            "or give path/to/file.py[:NAME] or path/to/file.yaml"
        )
    space: Space = import_module(f"archsearch.spaces.{given}").SPACE
    return space


def space_or_none(text: str) -> Space | None:
    """The space that `text` names, or None if it may name something else: a ready space, a YAML file, `file.py:NAME` of
    a space, or a file.py with a SPACE and no RULE. SpaceError as `find_space`, RuleError for a file that cannot be run.
    """
    if text.replace("-", "_") in READY or text.endswith((".yaml", ".yml")):
        return find_space(text)
    if not names_a_file(text):
        return None
    found = find_value(text, ("RULE", "SPACE"), error=RuleError)
    return found if isinstance(found, Space) else None


def _of_python(given: str) -> Space:
    found = find_value(given, ("SPACE", "RULE"), error=SpaceError)
    if isinstance(found, Rule):
        raise SpaceError(f"{given} is a rule; a space of it is a mapping: {{rule: {given}}}")
    return found if isinstance(found, Space) else load_value(given, Space, default="SPACE", error=SpaceError)


def _read_yaml(path: Path) -> object:
    try:
        return OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException) as error:
        problem = error.strerror if isinstance(error, OSError) else first_line(error)
        raise SpaceError(f"{path} cannot be read as YAML: {problem}") from error
