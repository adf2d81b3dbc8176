"""``edl argo lint``: what is wrong with Argo manifests, before a cluster sees them."""

import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edl_workflows.cli.output import print_document, print_line, print_styled
from edl_workflows.exceptions import InvalidError, NotFoundError

if TYPE_CHECKING:
    from edl_workflows.argo.lint import Finding

app = typer.Typer(help="Check Argo manifests.")

EXIT_FINDINGS = 2
"""What a shell sees when there are errors; as for any other invalid input."""
SUFFIXES = (".yaml", ".yml", ".json")
STYLES = {"error": "bold red", "warning": "yellow"}


class LintFormat(StrEnum):
    """How findings are printed."""

    TEXT = "text"
    JSON = "json"


@app.command("lint")
def lint(
    files: Annotated[
        list[str],
        typer.Argument(help="YAML or JSON files; folders stand for all such files in them; - is stdin."),
    ],
    output: Annotated[
        LintFormat, typer.Option("--output", "-o", help="Format of the findings.")
    ] = LintFormat.TEXT,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", help="Name of a rule to leave out; may be repeated.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
) -> None:
    """Check Argo manifests: the structure as a strict API server does, and what is accepted but can't work.

    Documents of other kinds are left alone. All files are read together: a templateRef to a workflow template
    among them is followed, one to another is not checked. Exit code 2 if there are errors.
    """
    from edl_workflows.argo.lint import check_texts, report

    ignored = _known(ignore or ())
    texts = [read for file in files for read in _read(file)]
    findings = [one for one in check_texts(texts) if one.rule.name not in ignored]
    if output is LintFormat.JSON:
        print_document(report.as_json(findings, len(texts)) + "\n")
    else:
        _print(findings, len(texts))
    if any(one.is_error or strict for one in findings):
        raise typer.Exit(EXIT_FINDINGS)


def _known(ignored: list[str] | tuple[str, ...]) -> set[str]:
    from edl_workflows.argo.lint.rules import RULES

    names = {rule.name for rule in RULES}
    for name in ignored:
        if name not in names:
            raise InvalidError(f"--ignore: there is no rule {name!r}; rules are {', '.join(sorted(names))}")
    return set(ignored)


def _read(file: str) -> Iterator[tuple[str, str]]:
    """(name, text) of a file, of all in a folder, or of stdin.

    Raises:
        NotFoundError: there is no such file, or nothing to check in the folder.
        InvalidError: it can't be read.
    """
    if file == "-":
        yield "stdin", sys.stdin.read()
        return
    path = Path(file)
    if not path.exists():
        raise NotFoundError(f"{file}: there is no such file")
    paths = sorted(one for one in path.rglob("*") if one.suffix in SUFFIXES) if path.is_dir() else [path]
    if not paths:
        raise NotFoundError(f"{file}: no {', '.join(SUFFIXES)} files in this folder")
    for one in paths:
        try:
            yield str(one), one.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidError(f"{one}: can't be read as UTF-8 text: {error}") from error


def _print(findings: "list[Finding]", files: int) -> None:
    from edl_workflows.argo.lint import report

    for line in report.finding_lines(findings):
        print_styled((text, STYLES.get(style, style)) for text, style in line)
    print_line(report.summary_line(findings, files))
