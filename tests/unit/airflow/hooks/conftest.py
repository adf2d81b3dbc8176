"""An API server with our kinds, a namespace for each test and a pretending controller in it."""

from tests.airflow import support

cluster, server, stand_in = support.cluster, support.server, support.stand_in
