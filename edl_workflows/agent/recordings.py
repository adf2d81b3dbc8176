"""The files of NCCL's flight recorder, which show the last collective operations of each rank when training
stopped.

PyTorch writes them if ``TORCH_NCCL_TRACE_BUFFER_SIZE`` (number of operations to remember) is not 0;
``TORCH_NCCL_DEBUG_INFO_TEMP_FILE`` is the files' path without the rank at its end.
"""

from collections.abc import Mapping
from pathlib import Path

_PREFIX_VARIABLE = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
_BUFFER_VARIABLE = "TORCH_NCCL_TRACE_BUFFER_SIZE"
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
    found = (file for file in prefix.parent.iterdir() if file.name.startswith(prefix.name))
    return sorted(str(file) for file in found if file.is_file())[:MOST]


def _prefix(environ: Mapping[str, str]) -> Path | None:
    if environ.get(_BUFFER_VARIABLE, "0") in ("", "0"):
        return None
    return Path(environ.get(_PREFIX_VARIABLE, "") or _DEFAULT_PREFIX)
