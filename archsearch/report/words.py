"""Numbers of things in words, and names that fit."""


def counted(number: int, noun: str) -> str:
    """`1 trial`, `1,200 trials`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


KEPT_END = 12
"""Characters of a name's end, which tells trials apart."""


def shortened(name: str, most: int) -> str:
    """A name of at most `most` > 13 characters; of a longer one the middle is left out."""
    if len(name) <= most:
        return name
    return name[: most - KEPT_END - 1] + "\N{HORIZONTAL ELLIPSIS}" + name[-KEPT_END:]
