"""Files of a trial in Optuna's artifact store, which its dashboard shows: the rule, the curve, the generated kernels.

They lie in STUDY/artifacts under names that Optuna gives them; the study's own files do not need them.
"""

import csv
import io
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optuna.artifacts import FileSystemArtifactStore, get_all_artifact_meta, upload_artifact
from optuna.trial import Trial

from archsearch.dsl import parse_rule
from archsearch.studies.files.directory import Measurement

RULE, CURVE, KERNELS = "rule.txt", "curve.csv", "kernels.py"


class Artifacts:
    """The store of a study. The kernels of a rule are kept with the first of its trials that this process sees end."""

    def __init__(self, folder: Path) -> None:
        """`folder` is made when the first file comes."""
        self._folder = folder
        self._kernels: set[str] = set()

    def keep(self, trial: Trial, proposal: Mapping[str, Any], curve: Sequence[Measurement]) -> None:
        """Add the files of a trial that has its whole budget; those that it has already are not added again."""
        rule = proposal.get("rule")
        if not rule:
            return
        texts = {RULE: str(rule), CURVE: _curve_text(curve)}
        if proposal["rule_hash"] not in self._kernels:
            self._kernels.add(str(proposal["rule_hash"]))
            texts[KERNELS] = kernel_source(str(rule))
        kept = {meta.filename for meta in get_all_artifact_meta(trial)}
        self._folder.mkdir(exist_ok=True)
        store = FileSystemArtifactStore(base_path=self._folder)
        with tempfile.TemporaryDirectory() as place:
            for name, text in texts.items():
                if name not in kept:
                    path = Path(place) / name
                    path.write_text(text, encoding="utf-8")
                    upload_artifact(artifact_store=store, file_path=str(path), study_or_trial=trial)


def kernel_source(rule: str) -> str:
    """The generated Triton source of a rule that is given as text."""
    from archsearch.kernels.dispatch import compile

    return compile(parse_rule(rule), "torch").source


def _curve_text(curve: Sequence[Measurement]) -> str:
    """The curve as CSV: tokens, seconds, and every value that was measured."""
    names = list(dict.fromkeys(name for measurement in curve for name in measurement.values))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["tokens", "seconds", *names])
    writer.writerows([[m.tokens, m.seconds, *(m.values.get(name, "") for name in names)] for m in curve])
    return out.getvalue()
