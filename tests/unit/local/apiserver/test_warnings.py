"""Warnings in the headers of an answer."""

import pytest

from edl_workflows.local.apiserver.views import MAX_WARNING, MAX_WARNINGS, json_response


def sent(*warnings: str) -> list[bytes]:
    """The ``Warning`` headers."""
    return [
        value for name, value in json_response(b"{}", warnings=warnings).raw_headers if name == b"warning"
    ]


@pytest.mark.parametrize(
    ("warning", "header"),
    [
        ("unknown field", '299 - "unknown field"'),
        ('unknown field "spec.ŵ"', '299 - "unknown field \\"spec.ŵ\\""'),
        ("unknown field 训练 😀", '299 - "unknown field 训练 😀"'),
        ("two\r\nlines", '299 - "two\\\\x0d\\\\x0alines"'),
        ("a\x1b[2J\x00b", '299 - "a\\\\x1b[2J\\\\x00b"'),
        ("a back\\slash", '299 - "a back\\\\slash"'),
        ("half a pair \ud800", '299 - "half a pair \\\\ud800"'),
    ],
    ids=[
        "plain",
        "not of latin-1",
        "of several scripts",
        "line breaks",
        "control characters",
        "escapes",
        "no Unicode",
    ],
)
def test_any_text_can_be_a_warning(warning: str, header: str) -> None:
    """A warning with any text, such as the name of a stored field, is sent as UTF-8 on one line."""
    assert sent(warning) == [header.encode()]


def test_warnings_are_bounded() -> None:
    """The number of warning headers and the length of each are bounded."""
    found = sent(*("a" * 10_000 for _ in range(1_000)))
    assert len(found) == MAX_WARNINGS
    assert max(map(len, found)) <= MAX_WARNING + len('299 - ""')
