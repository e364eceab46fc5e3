"""config.json: what is in the directory, as plain data with a schema version, and the hashes that hold it together."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from archsearch.dsl import parse_rule
from archsearch.errors import ArchsearchError, ConfigError, ExportError
from archsearch.mixers.export.module import Module
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.models.options import Model
from archsearch.typed_data import from_plain, to_plain

SCHEMA_VERSION = 1
FILE = "config.json"


@dataclass(frozen=True, slots=True)
class Configuration:
    """The key `archsearch` of config.json.

    rule: its text, rule_hash: of its canonical form. operands: shapes by name. layer, model: as `to_plain` writes them;
    model null for a layer alone. sizes: width, heads, vocabulary, and counts for a reader. tokens: "bytes", "symbols",
    or "vectors" for a layer alone. files: sha256 of every other file.
    """

    schema_version: int
    name: str
    rule: str
    rule_hash: str
    operands: Mapping[str, str]
    layer: Mapping[str, Any]
    model: Mapping[str, Any] | None
    sizes: Mapping[str, int]
    tokens: str
    trial: Mapping[str, Any]
    versions: Mapping[str, str]
    files: Mapping[str, str]

    def module(self, where: str) -> Module:
        """What is described. ExportError for a rule, a layer or a model that this archsearch does not understand."""
        try:
            rule = parse_rule(self.rule)
            module = Module(
                name=self.name,
                rule=rule,
                layer=from_plain(Layer, self.layer, f"{where}: layer"),
                width=self.sizes["width"],
                heads=self.sizes["heads"],
                model=None if self.model is None else from_plain(Model, self.model, f"{where}: model"),
                vocabulary=self.sizes["vocabulary"],
                text=self.tokens == "bytes",
            )
        except (ArchsearchError, KeyError) as error:
            raise ExportError(f"{where} does not describe a module: {error}") from error
        if rule.hash != self.rule_hash:
            raise ExportError(
                f"{where}: the rule's text has the hash {rule.hash[:12]}..., not {self.rule_hash[:12]}..."
            )
        return module


def described(module: Module, counts: Mapping[str, int], trial: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `Configuration` that do not depend on the files."""
    tokens = "vectors" if module.model is None else "bytes" if module.text else "symbols"
    return {
        "schema_version": SCHEMA_VERSION,
        "name": module.name,
        "rule": str(module.rule),
        "rule_hash": module.rule.hash,
        "operands": {name: operand.shape for name, operand in module.rule.operands.items()},
        "layer": to_plain(module.layer),
        "model": to_plain(module.model),
        "sizes": {"width": module.width, "heads": module.heads, "vocabulary": module.vocabulary, **counts},
        "tokens": tokens,
        "trial": dict(trial),
    }


def config_text(configuration: Configuration, others: Mapping[str, Any]) -> str:
    """The file: `others` are keys that other libraries read; `sha256` is of everything else in it."""
    data: dict[str, Any] = {**others, "archsearch": dataclasses.asdict(configuration)}
    return json.dumps({**data, "sha256": _hash(data)}, indent=2, ensure_ascii=False) + "\n"


def read_configuration(directory: Path) -> Configuration:
    """The configuration of an exported directory.

    Errors: ExportError for a directory that is no export, another schema version, unknown keys, or a changed file.
    """
    path = directory / FILE
    data = _object(path)
    given = data.get("archsearch")
    if not isinstance(given, dict):
        raise ExportError(f"{path} must hold the key archsearch, as archsearch export writes it; it does not")
    fields = cast(dict[str, Any], given)
    if fields.get("schema_version") != SCHEMA_VERSION:
        version = fields.get("schema_version")
        raise ExportError(f"{path} must have schema_version {SCHEMA_VERSION}; got {version!r}. Export the trial again")
    try:
        configuration = from_plain(Configuration, fields, str(path))
    except ConfigError as error:
        raise ExportError(f"{error}. Export the trial again") from error
    if data.get("sha256") != _hash({name: each for name, each in data.items() if name != "sha256"}):
        raise ExportError(f"{path} was changed after the export: its sha256 does not fit. Copy or export it again")
    return configuration


def file_hash(path: Path) -> str:
    """`sha256:...` of a file."""
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def check_files(directory: Path, configuration: Configuration) -> None:
    """ExportError that names the first file that is missing or differs from its hash."""
    for name, expected in configuration.files.items():
        path = directory / name
        if not path.is_file():
            raise ExportError(f"{path} is missing. Copy it back, or export the trial again")
        if file_hash(path) != expected:
            raise ExportError(f"{path} was changed after the export: its sha256 must be {expected[7:19]}...")


def _object(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ExportError(
            f"{path.parent} is no exported module: it has no {path.name}. See archsearch export --help"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError(f"{path} cannot be read: {error}") from error
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ExportError(f"{path} was changed after the export: it is no JSON ({error})") from error
    if not isinstance(data, dict) or json.dumps(data, indent=2, ensure_ascii=False) + "\n" != text:
        raise ExportError(f"{path} was changed after the export: it must be as archsearch export wrote it")
    return cast(dict[str, Any], data)


def _hash(data: Mapping[str, Any]) -> str:
    text = json.dumps(data, indent=2, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
