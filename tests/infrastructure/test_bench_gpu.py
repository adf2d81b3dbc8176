"""The benchmark on a GPU: what it prints where there is none, and its table."""

import re
from pathlib import Path

import pytest

from tests.benchmarks import bench_gpu

ROOT = Path(__file__).parents[2]


def test_without_a_gpu_it_names_the_tests(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It measures nothing, and names the tests that stand for it, which exist."""
    monkeypatch.setattr(bench_gpu, "GPU", Path("/dev/there-is-none"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: True)
    bench_gpu.main([])

    printed = capsys.readouterr().out
    assert printed.startswith("No NVIDIA GPU here, so nothing was measured")
    files = re.findall(r"tests/[\w/]+\.py", printed)
    assert len(files) == 4
    assert all((ROOT / file).exists() for file in files)


def test_it_says_what_the_interpreter_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error has the packages and what to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name != "torch")
    with pytest.raises(SystemExit):
        bench_gpu.main([])

    assert "lacks torch: install edl-workflows[torch] there" in capsys.readouterr().err


def test_the_table() -> None:
    """Figures beside their goals, also of the first save."""
    save = {"call": 0.002, "stall": 0.041, "later": 0.001, "copy": 0.2}
    figures: dict[str, object] = {
        **dict.fromkeys(("prepare", "beside_prepare", "store", "beside_store"), 1.0),
        "size": 10e9,
        "step": 0.15,
        "restore": 1.0,
        "check": 1.0,
        "disk": 2e9,
        "saves": [save, save],
    }
    lines = bench_gpu.of_saves(figures)

    assert lines[0] == "save of 10.00 GB beside a step of 0.150 s (goal: at most 0.06 s later)"
    assert lines[1] == "  the next step 0.041, 0.041 s later, of which the call took at most 0.002 s"
    assert "  copied at 50.0, 50.0 GB/s (goal: at least 50)" in lines
    assert "restore from the page cache: 10.0 GB/s (goal: at least 5)" in lines
    assert "  with its check 5.0 GB/s; the disk reads 2.0 GB/s" in lines
    rounds = {"ours": [0.0102, 0.0103, 0.0101], "theirs": [0.01, 0.01, 0.01]}
    assert bench_gpu.of_steps(rounds)[1].startswith("  1.020 times as long (goal: at most 1.03; 3 rounds")
