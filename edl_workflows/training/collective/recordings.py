"""The files of NCCL's flight recorder, which show the last collective operations of each rank when training
stopped.

They are written if ``TORCH_FR_BUFFER_SIZE`` (number of operations to remember) is set, and not to 0.
``TORCH_FR_DUMP_TEMP_FILE`` is the files' path without the rank at its end. PyTorch still knows the names that
these variables had before, ``TORCH_NCCL_TRACE_BUFFER_SIZE`` and ``TORCH_NCCL_DEBUG_INFO_TEMP_FILE``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

_PREFIX_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_BUFFER_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""The first that is set counts."""
_DEFAULT_PREFIX = "/tmp/nccl_trace_rank_"  # noqa: S108 - PyTorch's
MOST = 16
"""Most files of a pod, which has one process per GPU."""


def recording_of(environ: Mapping[str, str], rank: int) -> Path | None:
    """The file of a rank; None unless the recorder is on.

    Args:
        environ: environment of the training process.
        rank: rank of the process.
    """
    prefix = _prefix(environ)
    return None if prefix is None else prefix.with_name(f"{prefix.name}{rank}")


def find_recordings(environ: Mapping[str, str]) -> list[str]:
    """The existing files, sorted by name; none unless the recorder is on.

    Args:
        environ: environment of the training process.
    """
    prefix = _prefix(environ)
    if prefix is None or not prefix.parent.is_dir():
        return []
    recordings = (file for file in prefix.parent.iterdir() if file.name.startswith(prefix.name))
    return sorted(str(file) for file in recordings if file.is_file())[:MOST]


def _prefix(environ: Mapping[str, str]) -> Path | None:
    if _first_set(environ, _BUFFER_VARIABLES) in ("", "0"):
        return None
    return Path(_first_set(environ, _PREFIX_VARIABLES) or _DEFAULT_PREFIX)


def _first_set(environ: Mapping[str, str], variables: Sequence[str]) -> str:
    return next((environ[name] for name in variables if name in environ), "")
