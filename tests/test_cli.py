"""The command line, text in and text out: what each command says, where it says it, and its exit code."""

import errno
import re
import subprocess
import sys
from pathlib import Path

import pytest

from archsearch.cli import main
from archsearch.errors import StudyError, StudyLockedError
from archsearch.mixers import lookup

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = ("rules", "show", "check", "bench", "train", "export", "probe")
STUDY_COMMANDS = ("check", "run", "resume", "status", "best", "report", "finals", "aa")


class Said:
    """What one command line left behind: `code`, `out`, `err`."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


def command_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> Said:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert isinstance(left.value.code, int)
    said = capsys.readouterr()
    return Said(left.value.code, said.out, said.err)


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    said = command_line(capsys)
    assert (said.code, said.err) == (0, "")
    assert all(f" {name} " in said.out for name in (*COMMANDS, "study"))


def test_study_alone_prints_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    said = command_line(capsys, "study")
    assert said.code == 0
    assert all(f" {name} " in said.out for name in STUDY_COMMANDS)


@pytest.mark.parametrize("command", [*COMMANDS, *(f"study {name}" for name in STUDY_COMMANDS)])
def test_every_help_has_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    said = command_line(capsys, *command.split(), "--help")
    assert said.code == 0
    example = said.out[said.out.index(f"Example: archsearch {command}") :]
    assert all((ROOT / path).exists() for path in re.findall(r"\S+\.yaml", example))


@pytest.mark.parametrize("command", ["", "show", "study", "study check"])
def test_the_short_help_is_the_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    short, full = (command_line(capsys, *command.split(), option) for option in ("-h", "--help"))
    assert (short.code, short.out, short.err) == (0, full.out, "")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("shwo q_delta", "No such command 'shwo'. Did you mean show? Try: archsearch --help"),
        ("study rnu x", "No such command 'rnu'. Did you mean run? Try: archsearch study --help"),
        ("show", "Missing argument 'RULE'. Try: archsearch show --help"),
        ("show q_delta --jsn", "No such option: --jsn (Possible options: --json). Try: archsearch show --help"),
        ("rules q_delta", "Got unexpected extra argument(s) (q_delta). Try: archsearch rules --help"),
        ("show lost.py", "RuleError: cannot read lost.py: No such file or directory"),
    ],
)
def test_a_wrong_command_line_gets_one_line(capsys: pytest.CaptureFixture[str], line: str, expected: str) -> None:
    said = command_line(capsys, *line.split())
    assert (said.code, said.out, said.err) == (2, "", expected + "\n")


STUDY = "space: delta_family\ndirectory: runs/study\ntasks: {mqar: {tokens: 1000}}\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train lost.yaml", "ConfigError: no configuration file lost.yaml; give the path of a YAML file"),
        ("train list.yaml", "ConfigError: list.yaml must hold keys and values; got a list"),
        ("study run lost.yaml", "ConfigError: no configuration file lost.yaml; give the path of a YAML file"),
        (
            "study run study.yaml trails=3",
            "ConfigError: unknown key trails in study.yaml with trails=3; did you mean trials?",
        ),
        (
            "study run study.yaml trials=x",
            "ConfigError: trials must be an integer; got 'x' in study.yaml with trials=x",
        ),
        (
            "study run study.yaml space=delta_famly",
            "SpaceError: unknown space 'delta_famly'; did you mean delta_family? Ready spaces: delta_family, "
            "erases, decays, hybrids, hyperparameters; or give path/to/file.py[:NAME] or path/to/file.yaml "
            "(in study.yaml)",
        ),
        (
            "study status lost",
            "StudyError: a study's directory holds study.json; lost does not; start one with archsearch study run",
        ),
        ("export lost x", "StudyError: an export needs the directory of a study or of a trial; lost is neither"),
        (
            "show study.yaml",
            "SpaceError: a space has a rule and no tasks; study.yaml is a study's configuration: archsearch study "
            "check study.yaml says what it would train, archsearch study run study.yaml trains it",
        ),
        (
            "check study.yaml",
            "RuleError: a rule is a name of the zoo or path/to/file.py[:NAME]; study.yaml is YAML: archsearch study "
            "run takes a study's, archsearch train a trial's, archsearch show a space's",
        ),
        (
            "train study.yaml",
            "ConfigError: study.yaml is a study's configuration: archsearch study check study.yaml says what it would "
            "train, archsearch study run study.yaml trains it",
        ),
        ("study run trial.yaml", "ConfigError: trial.yaml is a trial's configuration: archsearch train trial.yaml"),
        (
            "study run study.yaml workers=local",
            "ConfigError: unknown key workers in study.yaml with workers=local; did you mean resources.workers?",
        ),
        (
            "check q_delta --backend tritn",
            "BackendError: backend must be one of auto, reference, torch, triton; got 'tritn'",
        ),
    ],
)
def test_bad_input_gets_one_line_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.yaml").write_text(STUDY, encoding="utf-8")
    (tmp_path / "list.yaml").write_text("- 1\n", encoding="utf-8")
    (tmp_path / "trial.yaml").write_text("rule: gdn\ntasks: {mqar: {tokens: 1000}}\n", encoding="utf-8")
    said = command_line(capsys, *line.split())
    assert (said.code, said.err) == (2, expected + "\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["list.yaml", "study.yaml", "trial.yaml"]


def test_an_unknown_rule_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    said = command_line(capsys, "show", "q_dleta")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("RuleError: unknown rule 'q_dleta'; did you mean q_delta? The zoo: linear, ")
    assert said.err.endswith("; or give path/to/file.py[:NAME]\n")
    assert said.err.count("\n") == 1


def test_a_rule_of_a_file_works_where_a_name_does(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = (
        "from archsearch import Rule, delta_write, gate, key, query, read, value\n"
        'RULE = Rule("mine", delta_write(key("k"), value("v"), strength=gate("beta")), read(query("q")))\n'
    )
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    said = command_line(capsys, "show", str(tmp_path / "mine.py"))
    assert (said.code, said.err) == (0, "")
    assert "beta" in said.out


def test_a_rule_that_the_zoo_knows_is_recognised_however_it_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Q-Delta with lam = 0, in other words and with other names, is the gated delta rule."""
    text = (
        "from archsearch import Rule, decay, delta_write, gate, key, log_decay, query, query_feedback, read, value\n"
        'k, a = key("a"), query("b")\n'
        "feedback = query_feedback(a, 0.0)\n"
        'step = delta_write(k, value("x"), strength=gate("s"), residual=feedback)\n'
        'RULE = Rule("mine", decay(log_decay("d")), step, read(a))\n'
    )
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    said = command_line(capsys, "show", str(tmp_path / "mine.py"))
    assert said.code == 0 and "that of gated_delta_net, kaczmarz, implicit, exact_ode: the same rule" in said.out
    assert "the same rule" not in command_line(capsys, "show", "q_delta").out
    assert '"known_as": [\n    "kda"\n  ]' in command_line(capsys, "show", "kda", "--json").out


def test_every_rule_of_the_zoo_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    said = command_line(capsys, "rules")
    assert said.code == 0
    assert all(name in said.out for name in lookup.rules)


@pytest.mark.parametrize("columns", [80, 120])
def test_the_zoo_fits_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = command_line(capsys, "rules").out.splitlines()
    assert all(len(line) <= columns for line in lines) and not any("\N{HORIZONTAL ELLIPSIS}" in line for line in lines)
    assert len(lines) < 4 * len(lookup.rules) + 40, "no column is so narrow that its words stand one under another"


def raising(fault: BaseException):
    """A stand-in for `find_rule` that raises."""

    def find_rule(text: str) -> None:
        raise fault

    return find_rule


@pytest.mark.parametrize(
    ("fault", "code", "last_line"),
    [
        (StudyError("no study here"), 2, "StudyError: no study here"),
        (StudyLockedError("held by process 7 on host a"), 3, "StudyLockedError: held by process 7 on host a"),
        (
            OSError(errno.ENOSPC, "No space left on device", "runs/a/study.json"),
            2,
            "runs/a/study.json cannot be written: No space left on device; free some space and run the same command "
            "again; nothing is lost",
        ),
        (
            OSError(errno.ENAMETOOLONG, "File name too long", "runs/aaa"),
            2,
            "runs/aaa cannot be used: File name too long; choose another path and run the same command again; "
            "nothing is lost",
        ),
        (KeyboardInterrupt(), 130, "Interrupted."),
        (
            ZeroDivisionError("division by zero"),
            1,
            "This is a fault of archsearch, not of the input: please report it with the lines above.",
        ),
    ],
)
def test_the_exit_code_says_whose_fault_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fault: BaseException, code: int, last_line: str
) -> None:
    monkeypatch.setattr(lookup, "find_rule", raising(fault))
    said = command_line(capsys, "show", "q_delta")
    assert (said.code, said.out) == (code, "")
    lines = said.err.splitlines()
    assert lines[-1] == last_line
    assert ("Traceback" in said.err) == (code == 1)
    assert code == 1 or len(lines) == 1


def test_the_module_runs_as_the_script_does() -> None:
    command = [sys.executable, "-m", "archsearch", "show", "q_dleta"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "q_delta" in done.stderr
    assert "Traceback" not in done.stderr
