"""`edl argo lint`: which files are read, the output, and the exit code."""

import io
import json
from pathlib import Path

import pytest

from edl_workflows.pipelines.cli import main

GOOD = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: hello}
spec:
  entrypoint: main
  templates:
  - name: main
    container: {image: busybox}
"""
BROKEN = GOOD.replace("entrypoint: main", "entrypoint: man")
WARNED = GOOD.replace("container: {image: busybox}", "plugin: {edl: {stage: wait, request: {name: mnist}}}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A correct file, one with an error, one with a warning, and one that is not a manifest."""
    (tmp_path / "inner").mkdir()
    for name, text in (
        ("good.yaml", GOOD),
        ("inner/broken.yml", BROKEN),
        ("warned.yaml", WARNED),
        ("x.txt", "{"),
    ):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_good_files_exit_0(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For valid files the command exits with 0, and its last line says that nothing is wrong."""
    assert main(["argo", "lint", str(folder / "good.yaml")]) == 0
    assert capsys.readouterr().out == "nothing wrong in 1 file\n"


def test_a_folder_is_read_with_all_below(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder is read with its subfolders. Errors exit with 2, and each finding has file, line, rule, path,
    problem and advice."""
    assert main(["argo", "lint", str(folder)]) == 2
    printed = capsys.readouterr().out
    assert (
        f"{folder}/inner/broken.yml:6: error[undefined-template] Workflow hello spec.entrypoint: "
        "there is no template 'man'\n    Did you mean main?\n"
    ) in printed
    assert printed.endswith("1 error and 1 warning in 3 files\n")


def test_warnings_exit_0_unless_strict(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Warnings exit with 0, or with --strict with an error."""
    file = str(folder / "warned.yaml")

    assert main(["argo", "lint", file]) == 0
    assert "warning[plugin-without-timeout]" in capsys.readouterr().out
    assert main(["argo", "lint", file, "--strict"]) == 2
    assert main(["argo", "lint", file, "--strict", "--ignore", "plugin-without-timeout"]) == 0


def test_stdin_and_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Programs can use standard input and JSON."""
    monkeypatch.setattr("sys.stdin", io.StringIO(BROKEN))

    assert main(["argo", "lint", "-", "-o", "json"]) == 2
    printed = json.loads(capsys.readouterr().out)
    assert (printed["files"], printed["errors"], printed["warnings"]) == (1, 1, 0)
    (finding,) = printed["findings"]
    assert (finding["rule"], finding["source"], finding["line"]) == ("undefined-template", "stdin", 6)


def test_a_long_line_is_not_wrapped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each finding is one line of output, however long, so that grep finds it."""
    file = tmp_path / "long.yaml"
    file.write_text(BROKEN.replace("entrypoint: man", f"entrypoint: {'m' * 300}"))

    assert main(["argo", "lint", str(file)]) == 2
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["/no/such/file"], 3, "no such file"),
        (["{}/empty"], 3, "no .yaml, .yml, .json files in this folder"),
        (["{}/binary.yaml"], 2, "can't be read as UTF-8 text"),
        (
            ["{}/good.yaml", "--ignore", "nonsense"],
            2,
            "there is no rule 'nonsense'; the rules are absent-key,",
        ),
    ],
)
def test_wrong_usage_says_what_to_do(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str
) -> None:
    """Wrong usage is an error, so that the command never checks less than was requested."""
    (folder / "empty").mkdir()
    (folder / "binary.yaml").write_bytes(b"\xff\xfe\x00")

    assert main(["argo", "lint", *(argument.format(folder) for argument in arguments)]) == code
    assert says in capsys.readouterr().err
