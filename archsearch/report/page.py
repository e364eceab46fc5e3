"""A page: a head and sections of blocks, as one HTML file with its style inside."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Protocol

from archsearch.report.tables import Table


class Block(Protocol):
    """A piece of a section."""

    def html(self) -> str:
        """Itself as HTML."""
        ...


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph of plain words. quiet: in grey. warning: marked at the side."""

    text: str
    quiet: bool = False
    warning: bool = False

    def html(self) -> str:
        """A paragraph."""
        names = " ".join(name for name, given in (("quiet", self.quiet), ("warning", self.warning)) if given)
        return f'<p class="{names}">{escape(self.text)}</p>' if names else f"<p>{escape(self.text)}</p>"


@dataclass(frozen=True, slots=True)
class Equation:
    """Lines of Unicode mathematics, set large; a caption below."""

    lines: Sequence[str]
    caption: str = ""

    def html(self) -> str:
        """A figure."""
        body = "".join(f"<div>{escape(line)}</div>" for line in self.lines)
        caption = f"<figcaption>{escape(self.caption)}</figcaption>" if self.caption else ""
        return f'<figure class="equation">{body}{caption}</figure>'


@dataclass(frozen=True, slots=True)
class Code:
    """Text as it is written; folded away under `summary` if there is one."""

    text: str
    summary: str = ""

    def html(self) -> str:
        """A pre-formatted block."""
        block = f"<pre><code>{escape(self.text)}</code></pre>"
        return f"<details><summary>{escape(self.summary)}</summary>{block}</details>" if self.summary else block


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values, side by side."""

    facts: Mapping[str, str]

    def html(self) -> str:
        """A description list."""
        pairs = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in self.facts.items())
        return f'<dl class="facts">{pairs}</dl>'


@dataclass(frozen=True, slots=True)
class Tiles:
    """The few figures that matter most: (figure, what it is)."""

    tiles: Sequence[tuple[str, str]]

    def html(self) -> str:
        """Boxes in a row."""
        boxes = "".join(f"<div><strong>{escape(a)}</strong><span>{escape(b)}</span></div>" for a, b in self.tiles)
        return f'<div class="tiles">{boxes}</div>'


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing with its caption."""

    svg: str
    caption: str

    def html(self) -> str:
        """A figure."""
        return f"<figure>{self.svg}<figcaption>{escape(self.caption)}</figcaption></figure>"


@dataclass(frozen=True, slots=True)
class Section:
    """A titled part of the page."""

    title: str
    blocks: Sequence[Block]

    def html(self) -> str:
        """A section."""
        return f"<section><h2>{escape(self.title)}</h2>{''.join(block.html() for block in self.blocks)}</section>"


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page. lead: one sentence under the title."""

    title: str
    lead: str
    sections: Sequence[Section]

    def html(self) -> str:
        """The file: valid HTML 5 that refers to nothing outside itself."""
        style = files("archsearch.report").joinpath("style.css").read_text(encoding="utf-8")
        body = "".join(section.html() for section in self.sections)
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{style}</style></head>"
            f'<body><main><header><h1>{escape(self.title)}</h1><p class="lead">{escape(self.lead)}</p></header>'
            f"{body}</main></body></html>\n"
        )

    def markdown(self) -> str:
        """The paragraphs and tables alone, as Markdown; sections without a table left out."""
        parts = [f"# {self.title}", self.lead]
        for section in self.sections:
            if not any(isinstance(block, Table) for block in section.blocks):
                continue
            parts.append(f"## {section.title}")
            for block in section.blocks:
                if isinstance(block, Table):
                    parts.append(f"{block.name}:\n\n{block.markdown().rstrip()}")
                elif isinstance(block, Text):
                    parts.append(block.text)
        return "\n\n".join(part for part in parts if part) + "\n"

    @property
    def tables(self) -> list[Table]:
        """Every table of the page."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Table)]
