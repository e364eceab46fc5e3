"""Runs a command line and leaves with its exit code.

0 done; 1 a fault of archsearch; 2 bad input, one clear line on stderr; 3 another driver holds the study; 130
interrupted.
"""

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

import typer

from archsearch.cli.door import app
from archsearch.errors import ArchsearchError, ClusterLostError

UNUSABLE = (errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)
"""Of a path that can be neither read nor written."""

PATH_FAULTS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR),
    *UNUSABLE,
)
"""Of the disk or of a path that the user chose, never of archsearch."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command line, by default the process's own, and leave with its exit code."""
    sys.exit(_exit_code(list(sys.argv[1:] if arguments is None else arguments)))


def _leave(code: int) -> NoReturn:
    """End this process now, whatever others have registered to be done at its end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _exit_code(arguments: list[str]) -> int:
    if arguments in ([], ["study"]):
        arguments = [*arguments, "--help"]
    try:
        code = app(arguments, prog_name="archsearch", standalone_mode=False)
    except ClusterLostError as error:
        _leave(_say(f"{type(error).__name__}: {error}", error.exit_code))
    except ArchsearchError as error:
        return _say(f"{type(error).__name__}: {error}", error.exit_code)
    except typer.TyperException as usage:
        return _say(_usage(usage, arguments), 2)
    except Exception as fault:
        if isinstance(fault, OSError) and fault.errno in PATH_FAULTS:
            return _say(_path_fault(fault), 2)
        traceback.print_exc()
        return _say("This is a fault of archsearch, not of the input: please report it with the lines above.", 1)
    return _say("Interrupted.", 130) if code == 130 else int(code or 0)


def _say(line: str, code: int) -> int:
    """Tell stderr one thing and hand the exit code on."""
    sys.stdout.flush()
    print(line, file=sys.stderr)
    return code


def _path_fault(fault: OSError) -> str:
    """A file system that refuses, in one line: where, why, what to do."""
    place = fault.filename or "a file"
    if fault.errno in UNUSABLE:
        again = "choose another path and run the same command again; nothing is lost"
        return f"{place} cannot be used: {fault.strerror}; {again}"
    advice = "free some space" if fault.errno in (errno.ENOSPC, errno.EDQUOT) else "choose a path that can be written"
    return f"{place} cannot be written: {fault.strerror}; {advice} and run the same command again; nothing is lost"


def _usage(fault: typer.TyperException, arguments: list[str]) -> str:
    """A wrong command line in one line: what is wrong, the nearest name, where to look."""
    context = getattr(fault, "ctx", None)
    command = context.command_path if context else "archsearch"
    nearest = ""
    if known := getattr(context and context.command, "commands", {}):
        tried = next((word for word in arguments if word not in ("study",) and not word.startswith("-")), "")
        nearest = "".join(f" Did you mean {name}?" for name in get_close_matches(tried, known, n=1))
    return f"{fault.format_message().rstrip('.')}.{nearest} Try: {command} --help"
