"""The API server and the simulated controller, which the tests of stages use too."""

from tests.airflow import support

cluster, server, stand_in = support.cluster, support.server, support.stand_in
