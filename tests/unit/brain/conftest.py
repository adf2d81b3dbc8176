"""An API server with our kinds, and a namespace for each test."""

from tests.airflow import support

cluster, server = support.cluster, support.server
