"""The front door: it knows the commands' names and loads a floor's `commands.py` only when one of them is called.

`rules`, `models` and `study` have the commands, `arguments` what several of them take, `door` puts them together;
`exits` runs a command line and says with which code it leaves.
"""

from archsearch.cli.door import app
from archsearch.cli.exits import main

__all__ = ["app", "main"]
