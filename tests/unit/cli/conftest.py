"""The API server and the pretending controller that the stages' tests use, too."""

from tests.airflow import support

cluster, server, stand_in = support.cluster, support.server, support.stand_in
