"""What the workers of one node share: the kernels that they compiled."""

import os
import tempfile
from pathlib import Path

CACHE = "TRITON_CACHE_DIR"


def keep_kernels_here() -> None:
    """Have this process keep what it compiles, and find what others compiled, in a directory of its node.

    A home that several nodes share is no place for it: Triton's files there fail when two nodes write at one time.
    Whoever has set TRITON_CACHE_DIR has chosen otherwise.
    """
    os.environ.setdefault(CACHE, str(Path(tempfile.gettempdir()) / f"archsearch-{os.getuid()}-triton"))
