"""How the output of a training process becomes lines of the pod's log."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.services.agent.output_lines import LINE_BYTES, SHOW_SECONDS, OutputLines

PIECES = [b"\n", b" ", b"\t", b"\x08", b"\x1b[1mloss 0.5", b"  indented"]
"""Of outputs with many lines, which arbitrary bytes seldom have."""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def cut(*pieces: bytes) -> list[bytes]:
    """The lines of an output that comes at once, and ends."""
    lines = OutputLines(Clock())
    return [line for piece in pieces for line in lines.add(piece)] + lines.end()


@given(
    st.lists(st.sampled_from(PIECES)).map(b"".join)
    | st.binary(max_size=200).filter(lambda t: b"\r" not in t),
    st.lists(st.integers(0, 200), max_size=5),
)
def test_lines_without_bars_stay_as_they_are(output: bytes, cuts: list[int]) -> None:
    """However the output arrives, nothing is lost or added, but for the end of the last line."""
    borders = [0, *sorted(cuts), len(output)]
    pieces = [output[begin:end] for begin, end in itertools.pairwise(borders)]
    complete, newline, last = output.rpartition(b"\n")
    written = b"".join(cut(*pieces))
    assert written.startswith(complete + newline)
    assert written[len(complete + newline) :] in (last.rstrip(b" \x08") + b"\n", b"")
    assert written.endswith(b"\n") or not output.strip(b" \x08\t\x0b\x0c\r\n")


@pytest.mark.parametrize(
    ("output", "lines"),
    [
        (b"a\r\nb\r\n", [b"a\n", b"b\n"]),
        (b"\r 1%\r 2%\r100%\nnext\n", [b"100%\n", b"next\n"]),
        (b" 1%\r 2%\r", [b" 2%\n"]),
        (b"bar 9%\b\b\b\b\b\b\rbar 10%\b\b\r\n", [b"bar 10%\n"]),
        (b"outer\r\n\r\x1b[Ainner\x1b[A\r        \r\n", [b"outer\n", b"\x1b[Ainner\x1b[A\n"]),
        (b"\n\n", [b"\n", b"\n"]),
        (b"loss 0.5", [b"loss 0.5\n"]),
        (b"", []),
    ],
)
def test_bars_and_last_lines(output: bytes, lines: list[bytes]) -> None:
    """Of a bar that is quick the last state is a line, whether the return stands before or after a state; a
    last line gets an end, so that nothing is joined with it."""
    assert cut(output) == lines
    assert cut(*(output[at : at + 1] for at in range(len(output)))) == lines


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([b"\r8/25", b"\r9/25 x", b"a lost\n", b"\r10/25"], [b"9/25 x\n", b"a lost\n", b"10/25\n"]),
        ([b"\r9/25", b"Traceback:\n  File\nError\n"], [b"9/25\n", b"Traceback:\n", b"  File\n", b"Error\n"]),
        ([b"\r9/25", b"\n", b"next\n"], [b"9/25\n", b"next\n"]),
        ([b"\r25/25", b" done\n", b"next\n"], [b"25/25 done\n", b"next\n"]),
        ([b"\r25/25", b", done\n"], [b"25/25, done\n"]),
        ([b"9/25\r", b"a member is lost\n"], [b"a member is lost\n"]),
        ([b"\r", b"a member is lost\n"], [b"a member is lost\n"]),
        ([b"load ", b"done\n", b"next\n"], [b"load done\n", b"next\n"]),
    ],
)  # fmt: skip
def test_a_line_of_another_writer_is_no_part_of_a_bar(pieces: list[bytes], lines: list[bytes]) -> None:
    """Such as a message of a library on stderr while a bar stands: it begins a new line. What the program
    itself adds to a bar stays there, and no line is empty."""
    assert cut(*pieces) == lines


@pytest.mark.parametrize("form", [b"\r%d%%", b"%d%%\r", b"."])
def test_a_bar_that_moves_shows_lines(form: bytes) -> None:
    """A bar that moves each second shows its present state every few seconds, and its end adds no empty
    line."""
    clock, shown = Clock(), []
    lines = OutputLines(clock)
    for second in range(100):
        clock.now = second
        shown += [(second, line) for line in lines.add(form % second if b"%" in form else form)]
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(shown)]
    assert max(gaps) <= 2 * SHOW_SECONDS
    assert min(gaps) >= SHOW_SECONDS
    assert all(line.count(b"\n") == 1 and b"\r" not in line and len(line) < 20 for _, line in shown)
    if b"%" in form:
        assert all(abs(second - int(line.strip(b"%\n"))) <= 1 for second, line in shown)
    lines.add(b"\rlast")
    assert lines.add(b"\n") == [b"last\n"]


def test_a_bar_that_stands_still() -> None:
    """The last state is shown though nothing follows; then the output needs no further look, and the line's
    end is no line."""
    clock = Clock()
    lines = OutputLines(clock)
    assert lines.add(b"\r37%") == []
    assert (lines.take_due(), lines.seconds_left) == ([], SHOW_SECONDS)
    clock.now = SHOW_SECONDS
    assert (lines.take_due(), lines.seconds_left) == ([b"37%\n"], None)
    assert lines.add(b"\n") == []
    assert lines.add(b"\n") == [b"\n"]


def test_a_very_long_line_comes_in_pieces() -> None:
    """A line without an end needs no memory beyond a limit, and stays one line."""
    pieces = cut(b"x" * LINE_BYTES, b"y", b"\nnext")
    assert pieces == [b"x" * LINE_BYTES, b"y\n", b"next\n"]
    assert cut(b"x" * LINE_BYTES, b"\nnext") == [b"x" * LINE_BYTES, b"\n", b"next\n"]
