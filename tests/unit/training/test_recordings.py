"""The files of NCCL's flight recorder."""

from pathlib import Path

import pytest

from edl_workflows.training.collective.recordings import MOST, find_recordings, recording_of


@pytest.mark.parametrize(
    ("size", "path"),
    [
        ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
    ],
    ids=["present names", "former names"],
)
def test_the_files_of_each_rank(tmp_path: Path, size: str, path: str) -> None:
    """Files of the recorder are those with the prefix of PyTorch's variable, at most 16, without folders."""
    for rank in range(MOST + 4):
        (tmp_path / f"trace-{rank:02}").touch()
    (tmp_path / "trace-folder").mkdir()
    (tmp_path / "other").touch()
    on = {size: "2000", path: f"{tmp_path}/trace-"}

    assert recording_of(on, 3) == tmp_path / "trace-3"
    assert find_recordings(on) == [f"{tmp_path}/trace-{rank:02}" for rank in range(MOST)]


def test_the_present_name_counts() -> None:
    """If a variable is set under both names, the present one counts, as in PyTorch."""
    both = {"TORCH_FR_BUFFER_SIZE": "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
    assert recording_of(both, 3) is None


def test_no_recorder(tmp_path: Path) -> None:
    """If the recorder is off or its folder does not exist, there are no files, even if another run left
    some."""
    (tmp_path / "trace-0").touch()
    prefix = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{tmp_path}/trace-"}

    assert find_recordings(prefix) == []
    assert recording_of(prefix, 3) is None
    assert find_recordings(prefix | {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}) == []
    gone = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{tmp_path}/gone/trace-"}
    assert find_recordings(gone | {"TORCH_NCCL_TRACE_BUFFER_SIZE": "9"}) == []
