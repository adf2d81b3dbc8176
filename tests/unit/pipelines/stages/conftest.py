"""An API server with our kinds, a namespace for each test, and `stand_in`, which plays the controller in it.

It runs each job, and ends those whose manifest says so: ``elastic_job(name, ends="Succeeded")``. `stage_runs`
has the identities of a first run, a retry and a cleared task.
"""

from tests.airflow import support

cluster, server, stand_in = support.cluster, support.server, support.stand_in
