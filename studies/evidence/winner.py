"""The trial that a study stands for: what an export or a probe of its directory takes, and why that one."""

from dataclasses import dataclass

from archsearch.studies.evidence.comparison import Word
from archsearch.studies.evidence.conclusions import Conclusions, Standing, conclude
from archsearch.studies.evidence.pareto import places
from archsearch.studies.evidence.pool import FINALS_FOLDER
from archsearch.studies.evidence.rows import Evidence, Row, read_evidence
from archsearch.studies.evidence.wording import spoken
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.search.fronts import losses


@dataclass(frozen=True, slots=True)
class Winner:
    """A trial with its study. verdict: what is known of its variant, one line for people. which: of the trials of an
    entrant, the rest of that line.
    """

    directory: StudyDirectory
    evidence: Evidence
    row: Row
    verdict: str
    which: str = ""

    @property
    def why(self) -> str:
        """How the trial was chosen, one line."""
        return f"{self.verdict}; {self.which}" if self.which else self.verdict


@dataclass(frozen=True, slots=True)
class Finals:
    """How far the finals of a search have come. winner: once every trial of theirs has ended, unless all failed."""

    directory: StudyDirectory
    ended: int
    wanted: int
    winner: Winner | None

    @property
    def words(self) -> str:
        """One line."""
        if self.ended < self.wanted:
            return f"Finals of this search: {self.ended} of {self.wanted} trials ended"
        return "Finals of this search: no trial has a value" if self.winner is None else self.winner.verdict


def find_winner(directory: StudyDirectory) -> Winner | None:
    """Of a search with finals their winner, else the first of its ranking; of a study of entrants theirs, as far as its
    trials have come; None where nothing is complete. StudyError if the directory holds no study.
    """
    finals = finals_of(directory)
    if finals is not None and finals.winner is not None:
        return finals.winner
    evidence = read_evidence(directory)
    concluded = conclude(evidence)
    if concluded is not None:
        return _of_entrants(directory, evidence, concluded)
    row = evidence.winner
    if row is None:
        return None
    verdict = f"Winner of the search, on one seed: trial {row.number}, {row.name}"
    return Winner(directory, evidence, row, verdict if finals is None else f"{verdict} ({finals.words})")


def finals_of(directory: StudyDirectory) -> Finals | None:
    """The finals of the search in `directory`; None where they have not begun."""
    home = StudyDirectory(directory.path / FINALS_FOLDER)
    if not home.exists():
        return None
    evidence = read_evidence(home)
    concluded = conclude(evidence)
    if concluded is None:
        return None
    ended = sum(row.outcome is not None for row in evidence.rows)
    wanted = len(concluded.standings) * len(concluded.seeds)
    whole = ended >= wanted
    return Finals(home, ended, wanted, _of_entrants(home, evidence, concluded) if whole else None)


def winner_words(evidence: Evidence, concluded: Conclusions) -> str | None:
    """Which entrant leads and how surely, one line, once every trial of the finals of a search has ended; else None."""
    ended = sum(row.outcome is not None for row in evidence.rows)
    is_whole = ended >= len(concluded.standings) * len(concluded.seeds)
    standing = _leading(evidence, concluded)
    if standing is None or not is_whole or not any(each.scores for each in concluded.standings.values()):
        return None
    return _verdict(concluded, standing)


def _of_entrants(directory: StudyDirectory, evidence: Evidence, concluded: Conclusions) -> Winner | None:
    """The trial in the middle of the leading entrant's: the best would be the luckiest seed."""
    standing = _leading(evidence, concluded)
    if standing is None:
        return None
    ordered = sorted(standing.complete, key=lambda row: losses(row.values, evidence.objectives))
    row = ordered[len(ordered) // 2]
    first = spoken(next(iter(evidence.objectives)))
    which = f"of its seeds {row.seed}, the one in the middle in {first}"
    return Winner(directory, evidence, row, _verdict(concluded, standing), which)


def _leading(evidence: Evidence, concluded: Conclusions) -> Standing | None:
    """Of those that win in an objective and lose in none, the first on the front; of all, where there is no such."""
    ordered = [concluded.standings[place.name] for place in places(evidence, concluded)]
    sure = [standing for standing in ordered if _wins(concluded, standing)]
    return next(iter([*sure, *ordered]), None)


def _wins(concluded: Conclusions, standing: Standing) -> bool:
    words = {judgement.word for judgement in concluded.of(standing.name).values()}
    return Word.WIN in words and Word.LOSS not in words


def _verdict(concluded: Conclusions, standing: Standing) -> str:
    seeds = f"on {len(concluded.seeds)} fresh seeds"
    verdicts = ", ".join(f"{each.word.value} in {spoken(goal)}" for goal, each in concluded.of(standing.name).items())
    if _wins(concluded, standing):
        return f"Winner of the finals {seeds}: {standing.name} ({verdicts}, against {concluded.against})"
    is_reference = standing.name == concluded.against
    against = "the baseline" if is_reference else f"{verdicts}, against {concluded.against}"
    return f"No clear winner of the finals {seeds}; the best by its means: {standing.name} ({against})"
