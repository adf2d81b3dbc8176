"""The cases of the kinds of jobs, a module for each. `KIND_CASES` has the `CASES` of every module here."""

import pkgutil
from importlib import import_module

from tests.cases.kind import KindCases

_MODULES = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]

KIND_CASES: dict[str, KindCases] = {module.CASES.kind: module.CASES for module in _MODULES}
"""Kind → its cases."""
