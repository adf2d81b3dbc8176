"""Rows of CSV files with a header; errors name the file, line and field."""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path

from edl_workflows.exceptions import InvalidError, NotFoundError


@dataclass(frozen=True)
class CsvRow:
    """A row.

    Attributes:
        file: the path as given.
        line: the line number; the header is line 1.
        fields: column → text; None if the line is too short.
    """

    file: str
    line: int
    fields: Mapping[str, str | None]

    def has(self, name: str) -> bool:
        """Whether this column is not empty."""
        return bool(self.fields.get(name))

    def text(self, *names: str) -> str:
        """The text in the first of these columns that exists.

        Raises:
            InvalidError: the header has none of them, or the field is empty.
        """
        return self._field(*names)[1]

    def number(self, *names: str, zero: bool = False) -> float:
        """A finite number above 0, or at least 0.

        Args:
            names: alternative names of the column.
            zero: whether it may be 0.

        Raises:
            InvalidError: the field is something else.
        """
        name, text = self._field(*names)
        try:
            value = float(text)
        except ValueError:
            value = inf
        if not (0 < value < inf or (zero and value == 0)):
            raise self.wrong(name, f"{text!r} is not a number {'of at least' if zero else 'above'} 0")
        return value

    def whole(self, *names: str) -> int:
        """A whole number of at least 1.

        Raises:
            InvalidError: there is none.
        """
        name, text = self._field(*names)
        try:
            value = int(text)
        except ValueError:
            value = 0
        if value < 1:
            raise self.wrong(name, f"{text!r} is not a whole number of at least 1")
        return value

    def moment(self, *names: str) -> float:
        """A time in seconds: a number of at least 0, or an ISO 8601 date and time, by default in UTC.

        Raises:
            InvalidError: there is none.
        """
        name, text = self._field(*names)
        try:
            return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
        except ValueError:
            pass
        try:
            return self.number(name, zero=True)
        except InvalidError:
            time = "a date and time as 2017-10-09 07:01:55"
            problem = f"{text!r} is neither {time} nor a number of seconds from 0 up"
            raise self.wrong(name, problem) from None

    def wrong(self, name: str, problem: str) -> InvalidError:
        return InvalidError(f"{self.file}:{self.line}: {name}: {problem}; correct the line")

    def _field(self, *names: str) -> tuple[str, str]:
        """The name of the column that exists, and its text."""
        name = next((one for one in names if one in self.fields), None)
        if name is None:
            known = ", ".join(self.fields)
            raise InvalidError(
                f"{self.file}:1: there is no column {' or '.join(names)}, only {known}; add it to the header"
            )
        text = (self.fields[name] or "").strip()
        if not text:
            raise self.wrong(name, "there is nothing")
        return name, text


def read_rows(path: Path) -> Iterator[CsvRow]:
    """The rows of a file.

    Raises:
        NotFoundError: the file is missing.
        InvalidError: the file can't be read, is not CSV in UTF-8, or a line has more fields than the header.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.DictReader(file)
            if not lines.fieldnames:
                raise InvalidError(f"{path}:1: the file is empty; its first line has to name the columns")
            for fields in lines:
                if None in fields:
                    raise InvalidError(
                        f"{path}:{lines.line_num}: there are more fields than columns; correct the line"
                    )
                yield CsvRow(str(path), lines.line_num, fields)
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: there is no such file") from error
    except OSError as error:
        raise InvalidError(f"{path}: the file can't be read: {error.strerror}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidError(f"{path}: the file is no CSV in UTF-8: {error}") from error
