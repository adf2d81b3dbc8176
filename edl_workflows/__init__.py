"""Elastic deep-learning jobs as stages of Airflow and Argo pipelines, with the engine included.

``docs/explanation/architecture.md`` explains the folders, top to bottom. Importing this package imports none
of its modules, so a DAG file loads only what it imports itself.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def import_on_use(package: str, modules: Mapping[str, str], name: str) -> Any:
    """A public name of a package whose modules are imported on first use; the body of its ``__getattr__``.

    Args:
        package: the package's name.
        modules: the module of each public name.
        name: the name that is looked up.

    Raises:
        AttributeError: the package has no such name.
    """
    if name not in modules:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(import_module(modules[name]), name)
