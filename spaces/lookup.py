"""From what a user types to a space: a ready one, `path/to/file.py` (its SPACE), or `path/to/file.py:NAME`."""

from difflib import get_close_matches
from importlib import import_module

from archsearch.errors import SpaceError
from archsearch.spaces.space import Space
from archsearch.userfile import load_value, names_a_file

READY = ("delta_family",)
"""The ready spaces: each is the SPACE of the module of that name beside this one."""


def find_space(text: str) -> Space:
    """The space that `text` names.

    Raises SpaceError in one line: an unknown name with the nearest known one, a file that is missing, fails, or holds
    no space.
    """
    if names_a_file(text):
        return load_value(text, Space, default="SPACE", error=SpaceError)
    if text not in READY:
        nearest = "".join(f"; did you mean {name}?" for name in get_close_matches(text, READY, n=1))
        raise SpaceError(
            f"unknown space {text!r}{nearest or '.'} Ready spaces: {', '.join(READY)}; or give path/to/file.py[:NAME]"
        )
    space: Space = import_module(f"archsearch.spaces.{text}").SPACE
    return space
