"""The command line of the modules that generate files of the repository."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path


def write_or_check(files: Mapping[Path, str], command: str, arguments: list[str] | None = None) -> int:
    """Write generated files (``--write``), or report those that are out of date (``--check``).

    Args:
        files: their texts.
        command: the command that writes them, for the message.
        arguments: of the command line; None for those of the process.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(description=f"Generated files: {command}.")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true", help="write the files")
    mode.add_argument("--check", action="store_true", help="fail if a file is not up to date")
    write = parser.parse_args(arguments).write
    stale = [
        path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if write:
        for path in stale:
            path.parent.mkdir(exist_ok=True)
            path.write_text(files[path], encoding="utf-8")
    elif stale:
        sys.stderr.write(f"not up to date: {', '.join(map(str, stale))}; run `{command}`\n")
    return 1 if stale and not write else 0
