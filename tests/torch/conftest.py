"""These tests need PyTorch, which the project's own environment has not: `make test-torch` runs them with an
interpreter that has it."""

import importlib.util
import os

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]

os.environ["OMP_NUM_THREADS"] = "1"  # members are threads of one process here
