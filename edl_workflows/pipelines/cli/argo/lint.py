"""``edl argo lint``: finds errors in Argo manifests before they are applied."""

import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edl_workflows.core.exceptions import InvalidError, NotFoundError
from edl_workflows.pipelines.cli.output import print_document, print_line, print_styled

if TYPE_CHECKING:
    from edl_workflows.pipelines.argo.lint import Finding

app = typer.Typer(help="Check Argo manifests.")

EXIT_FINDINGS = 2
"""Exit code if there are errors; the same as for other invalid input."""
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
        typer.Argument(help="YAML or JSON files, folders with such files, or - for standard input."),
    ],
    output: Annotated[
        LintFormat, typer.Option("--output", "-o", help="Format of the findings.")
    ] = LintFormat.TEXT,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", help="Name of a rule to ignore. May be repeated.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")] = False,
) -> None:
    """Check Argo manifests: their structure, as a strict API server does, and errors that an API server
    accepts.

    Documents of other kinds are ignored. All files are checked together: templateRefs to workflow templates
    in these files are checked, others are not. Exits with code 2 if there are errors.
    """
    from edl_workflows.pipelines.argo.lint import check_texts, report

    ignored = _check_rule_names(ignore or ())
    texts = [read for file in files for read in _read(file)]
    findings = [finding for finding in check_texts(texts) if finding.rule.name not in ignored]
    if output is LintFormat.JSON:
        print_document(report.as_json(findings, len(texts)) + "\n")
    else:
        _print(findings, len(texts))
    if any(finding.is_error or strict for finding in findings):
        raise typer.Exit(EXIT_FINDINGS)


def _check_rule_names(ignored: list[str] | tuple[str, ...]) -> set[str]:
    from edl_workflows.pipelines.argo.lint.rules import RULES

    names = {rule.name for rule in RULES}
    for name in ignored:
        if name not in names:
            raise InvalidError(
                f"--ignore: there is no rule {name!r}; the rules are {', '.join(sorted(names))}"
            )
    return set(ignored)


def _read(file: str) -> Iterator[tuple[str, str]]:
    """Yield (name, text) for a file, for all files of a folder, or for standard input.

    Raises:
        NotFoundError: the file does not exist, or the folder has no files to check.
        InvalidError: it can't be read.
    """
    if file == "-":
        yield "stdin", sys.stdin.read()
        return
    path = Path(file)
    if not path.exists():
        raise NotFoundError(f"{file}: no such file")
    paths = (
        sorted(child for child in path.rglob("*") if child.suffix in SUFFIXES) if path.is_dir() else [path]
    )
    if not paths:
        raise NotFoundError(f"{file}: no {', '.join(SUFFIXES)} files in this folder")
    for manifest_path in paths:
        try:
            yield str(manifest_path), manifest_path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidError(f"{manifest_path}: can't be read as UTF-8 text: {error}") from error


def _print(findings: "list[Finding]", files: int) -> None:
    from edl_workflows.pipelines.argo.lint import report

    for line in report.finding_lines(findings):
        print_styled((text, STYLES.get(style, style)) for text, style in line)
    print_line(report.summary_line(findings, files))
