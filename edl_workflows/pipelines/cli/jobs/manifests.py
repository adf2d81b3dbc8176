"""Reads manifests from files, folders and standard input, as kubectl does."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from edl_workflows.core.exceptions import InvalidError

SUFFIXES = (".json", ".yaml", ".yml")
"""Suffixes of the files that are read from a folder."""


def read_manifest(path: Path) -> dict[str, Any]:
    """Read the single object in a YAML or JSON file.

    Raises:
        InvalidError: the file can't be read, is not YAML, or does not contain exactly one object.
    """
    from edl_workflows.pipelines.manifests import manifest

    return manifest.parse_object(_read(path), str(path))


def read_manifests(paths: Iterable[Path], *, recursive: bool = False) -> list[dict[str, Any]]:
    """Read all objects in files and folders. The files of a folder are read in the order of their names.

    Args:
        paths: files, folders, or - for standard input.
        recursive: whether to read subfolders.

    Raises:
        InvalidError: a file can't be read, is not YAML, or does not contain an object.
    """
    from edl_workflows.pipelines.manifests import manifest

    return [
        document
        for path in paths
        for file in _files(path, recursive=recursive)
        for document in manifest.parse_objects(_read(file), str(file))
    ]


def _files(path: Path, *, recursive: bool) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    inside = sorted(path.rglob("*") if recursive else path.iterdir())
    files = [file for file in inside if file.suffix in SUFFIXES and file.is_file()]
    if not files:
        raise InvalidError(f"{path}: the folder has no file that ends in {', '.join(SUFFIXES)}")
    yield from files


def _read(path: Path) -> str:
    from edl_workflows.pipelines.manifests import manifest

    try:
        if str(path) == "-":
            return typer.get_text_stream("stdin").read(manifest.MAX_CHARACTERS + 1)
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(f"can't read the manifest {path}: {error}") from error
