"""The pytest plugin of schemathesis, for the tests of this folder, which it makes from OpenAPI documents."""

import pytest
from schemathesis.pytest import plugin


def pytest_configure(config: pytest.Config) -> None:
    """Register it by another name than that by which `pyproject.toml` keeps it out of all other runs."""
    if not config.pluginmanager.is_registered(plugin):
        config.pluginmanager.register(plugin, "schemathesis-of-contract")
