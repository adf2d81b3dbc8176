"""An API server with our kinds, a namespace for each test and a pretending controller in it."""

from tests.airflow.support import cluster, server, stand_in  # noqa: F401
