"""An API server with the kinds of this package, and a namespace for each test."""

from tests.airflow import support

cluster, server = support.cluster, support.own_server
