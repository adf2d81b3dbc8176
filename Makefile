# `make help` lists the targets. Each target installs what it needs, so any of them can be the first after a clone.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# All tests of a file run in one process, so that the file's servers start once. xdist's groups would do the same, but
# pytest 9.2 does not see the group names, because of where pytest-xdist 3.8 writes them. Files run in collection order,
# in which the files that take longest come first. Tests wait for processes about as long as they compute, so there are
# two processes per core. The tests of `make test-unit` compute more, and each process first takes 7 s of CPU to import
# and collect all of them.
PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
WORKERS := 4
test-unit test-e2e: WORKERS := 3
# Marker expressions that select tests of `make test-e2e` and `make test-cluster`; CI sets 'not long'.
E2E := e2e
CLUSTER_TESTS := cluster
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
TORCH_READY := $(VENV)-torch/.ready
# The Airflow versions and the tests of `make test-airflow-versions`. Other tests need features of the newest Airflow.
AIRFLOW := 3.0 3.1 3.2
AIRFLOW_TESTS := tests/unit/airflow/operators tests/unit/airflow/hooks tests/unit/airflow/triggers $(addprefix tests/airflow/test_,\
	operators.py semantics.py deferral.py finished_early.py task_state.py reaper.py reruns.py lineage.py task_log.py)
# The part of AIRFLOW_TESTS that CI runs with each version, a minute each: behavior that differs in older versions.
AIRFLOW_QUICK := tests/unit/airflow/hooks tests/unit/airflow/operators tests/unit/airflow/triggers tests/airflow/test_deferral.py \
	tests/airflow/test_task_state.py
# Older Airflows use functions that their libraries have deprecated since.
OLD_WARNINGS := -W ignore::DeprecationWarning -W ignore::FutureWarning
# The framework of `make demo`: tensorflow or torch.
FRAMEWORK := tensorflow
BED := $(BIN)/python -m tests.cluster.bed

# Container images often set this variable. With it, each of the hundreds of processes that tests start would compile
# every module that it imports: TensorFlow's import takes 9.5 s of CPU instead of 4.0, Airflow's 5.7 instead of 2.1.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-all test-e2e test-torch test-gpu test-airflow-versions test-airflow-quick test-cluster cluster-build cluster-up cluster-down test-unit lint style format type docs docs-check docs-site generate golden check bench bench-shards bench-migration bench-airflow bench-apiserver bench-jobs bench-controller bench-cluster bench-mixed bench-scale bench-scaling bench-master bench-brain bench-checkpoint bench-goodput bench-allreduce bench-torch bench-gpu bench-members kill-schedules window-kills fuzz constraints changelog image clean

help:  ## Show the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# pip needs minutes to resolve and install this set, uv seconds. The constraints contain exact versions.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=…"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[all]' --group dev
	@touch $@

$(DOCS_READY): $(READY)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --group docs
	@touch $@

# PyTorch takes 5 GB, so only targets that need it install it, in a separate environment.
$(TORCH_READY): pyproject.toml tests/clients/requirements/torch.txt | $(READY)
	$(BIN)/uv venv --quiet --clear $(VENV)-torch
	$(BIN)/uv pip install --quiet --python $(VENV)-torch/bin/python --constraint tests/clients/requirements/torch.txt --editable '.[torch]' scikit-learn
	@touch $@

demo: $(READY) $(if $(filter torch,$(FRAMEWORK)),$(TORCH_READY))  ## Train a real elastic job through an Airflow pipeline on this machine; FRAMEWORK=torch
	$(BIN)/python -m tests.demo --output demo-output --framework $(FRAMEWORK) --python $(VENV)$(if $(filter torch,$(FRAMEWORK)),-torch)/bin/python

test: $(READY)  ## Unit, property, golden, contract and Airflow tests; one end-to-end run of each kind (17 min)
	$(PYTEST) $(PARALLEL) -m 'not e2e or smoke'
	@echo "Left out: the other end-to-end tests (make test-e2e) and the tests on a real Kubernetes (make test-cluster)."
	@echo "make test-all runs all of them."

test-e2e: $(READY)  ## The end-to-end tests that `make test` leaves out (an hour)
	$(PYTEST) $(PARALLEL) -m 'e2e and not smoke and ($(E2E))'
	@$(if $(filter-out e2e,$(E2E)),echo "Left out: end-to-end tests other than '$(E2E)' (make test-e2e runs all).")
	@echo "Left out: the tests of make test, and those on a real Kubernetes (make test-cluster)."

test-torch: $(READY)  ## Tests of the PyTorch adapter, with an interpreter that has PyTorch (5 GB, kept outside the repository)
	$$($(BIN)/python -m tests.clients.environments torch) -m pytest tests/torch

test-gpu: $(READY)  ## Collective jobs over NCCL, on a machine with an NVIDIA GPU
	@test -e /dev/nvidia0 || { echo "No NVIDIA GPU: there is no /dev/nvidia0"; exit 1; }
	$(PYTEST) tests/gpu

test-airflow-versions: $(READY)  ## The provider's tests on older Airflows, kept outside the repository; AIRFLOW="3.0 3.1 3.2"
	@set -e; for version in $(AIRFLOW); do echo "Airflow $$version"; \
	python=$$($(BIN)/python -m tests.clients.environments airflow-$$version); \
	$(BIN)/uv pip install --quiet --python $$python --no-deps --editable .; \
	$$python -m pytest $(OLD_WARNINGS) $(AIRFLOW_TESTS); done

test-airflow-quick:  ## The tests of these that CI runs
	$(MAKE) test-airflow-versions AIRFLOW_TESTS="$(AIRFLOW_QUICK)"

test-cluster: $(READY)  ## Tests on a real Kubernetes with Argo, started for them unless it runs (root, Go)
	$(BED) build
	$(PYTEST) tests/cluster -m '$(CLUSTER_TESTS)'
	@$(if $(filter-out cluster,$(CLUSTER_TESTS)),echo "Left out: cluster tests other than '$(CLUSTER_TESTS)' (make test-cluster runs all).")
	@echo "Left out: the tests without a real Kubernetes (make test and make test-e2e)."

test-all: test test-torch test-e2e  ## All tests; those on a real Kubernetes only where one can be made
	@if lack=$$($(BED) missing); then $(MAKE) test-cluster; \
	else echo "Left out: the tests on a real Kubernetes (make test-cluster), since $$lack"; fi

cluster-build: $(READY)  ## Build that cluster's programs; says what is missing
	$(BED) build

cluster-up: $(READY)  ## Start that cluster and leave it running
	$(BED) up

cluster-down: $(READY)  ## End it and remove all of it
	$(BED) down

test-unit: $(READY)  ## Unit, property, golden and contract tests but for the slow ones (2 min)
	$(PYTEST) $(PARALLEL) tests/unit tests/property tests/golden tests/contract tests/argo -m 'not slow'
	@echo "Left out: tests marked slow, Airflow's and the API server's (make test), and all that make test leaves out."

lint: $(READY)  ## ruff, import contracts, generated files
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/python -m edl_workflows.pipelines.install.crds --check
	$(BIN)/python -m edl_workflows.airflow.stage_operators --check

style: $(READY)  ## Figures of the code's form: sizes, names, long lines; fails if a limit is broken
	$(BIN)/python -m tests.style

format: $(READY)  ## Format and fix with ruff
	$(BIN)/ruff check --fix --exit-zero --quiet
	$(BIN)/ruff format
	$(BIN)/ruff check

type: $(READY)  ## mypy, strict, over package, DAGs and tests
	$(BIN)/mypy

docs: $(READY)  ## Write the generated reference pages
	$(BIN)/python docs/generate.py --write

generate: $(READY)  ## Write all generated files: definitions of the kinds, operators of the stages, reference pages
	$(BIN)/python -m edl_workflows.pipelines.install.crds --write
	$(BIN)/python -m edl_workflows.airflow.stage_operators --write
	$(BIN)/python docs/generate.py --write

golden: $(READY)  ## Write the golden files anew; read their diff
	$(PYTEST) tests/golden tests/argo/test_golden.py --update-golden

docs-site: $(DOCS_READY)  ## Build the documentation as a site in site/; dead links and missing pages are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

check: lint type docs-check test  ## What a change must pass before it is offered; CI adds the other tests

docs-check: $(READY)
	$(BIN)/python docs/generate.py --check

bench: bench-shards bench-migration bench-airflow bench-apiserver bench-controller  ## All benchmarks, with ratios against peers and limits

bench-shards: $(READY)  ## Shard dispatch against DLRover's
	$(BIN)/python tests/benchmarks/bench_shards.py

bench-migration: $(READY)  ## A migration's stall against stop-and-resubmit
	$(BIN)/python tests/benchmarks/bench_migration.py

bench-checkpoint: $(READY)  ## How long training waits for a checkpoint of 500 MiB: in two stages, and directly
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks.bench_checkpoint

bench-goodput: $(READY)  ## A job with a kill each minute against none, and against resubmission (half an hour)
	$(BIN)/python -m tests.benchmarks.bench_goodput

bench-torch: $(READY)  ## The PyTorch adapter against its peers: a step, a checkpoint, members killed; KILLS=
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks.bench_torch
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks.bench_torch_checkpoint
	$(BIN)/python -m tests.benchmarks.bench_survivors --kills $(or $(KILLS),100)

bench-gpu: $(READY)  ## Saves, restores and a step of the PyTorch adapter on an NVIDIA GPU, in four minutes
	$$($(BIN)/python -m tests.clients.environments torch) -m tests.benchmarks.bench_gpu

bench-members: $(READY)  ## How long survivors stand still in jobs of 3, 8, 32 and 128 PyTorch members on this machine; MEMBERS= KILLS=
	$(BIN)/python -m tests.benchmarks.bench_members --members $(or $(MEMBERS),3 8 32 128) --kills $(or $(KILLS),20)

bench-allreduce: $(READY)  ## The stall of a collective job's change of workers against stop-and-resubmit
	$(BIN)/python -m tests.benchmarks.bench_allreduce

kill-schedules: $(READY)  ## Random kills of jobs on the embedded cluster; SCHEDULES=200 SEED=1
	$(BIN)/python -m tests.e2e.kill_schedules --schedules $(or $(SCHEDULES),200) --seed $(or $(SEED),1)

window-kills: $(READY)  ## Masters killed before acknowledgements are stored, a third of them with a worker; KILLS=200 SEED=1
	$(BIN)/python -m tests.e2e.window_kills --kills $(or $(KILLS),200) --seed $(or $(SEED),1)

fuzz: $(READY)  ## Attacks on every server, by seeds; MINUTES=30 SEEDS="1 2 3"
	$(BIN)/python -m tests.security.fuzz --minutes $(or $(MINUTES),30) --seeds $(or $(SEEDS),1 2 3)

bench-airflow: $(READY)  ## DAG parse time; what a waiting task costs, also 100 with training logs while triggerers are killed
	$(BIN)/python -m tests.benchmarks.bench_airflow

bench-apiserver: $(READY)  ## The embedded API server: creates a second, watch latency
	$(BIN)/python tests/benchmarks/bench_apiserver.py

bench-jobs: $(READY)  ## 10,000 small jobs on one embedded cluster: each ends or says why it waits (JOBS=2500 MINUTES=3)
	$(BIN)/python tests/benchmarks/bench_jobs.py --jobs $(or $(JOBS),10000) --minutes $(or $(MINUTES),30)

bench-controller: $(READY)  ## The controller under 1,000 jobs of 4 pods
	$(BIN)/python tests/benchmarks/bench_controller.py

bench-cluster: $(READY)  ## On a real cluster: waiting steps, starts, 1,000 jobs beside training-operator and the limit (root, Go; an hour)
	$(BIN)/python -m tests.benchmarks.bench_cluster

bench-mixed: $(READY)  ## On a real API server: 1,000 jobs of all kinds; requests a job beside ElasticJob's (root, Go)
	$(BIN)/python -m tests.benchmarks.bench_mixed

bench-scale: $(READY)  ## On a real API server: what 1,000 running jobs cost it, etcd and the controller; JOBS= MINUTES= (root, Go; 40 min)
	$(BIN)/python -m tests.benchmarks.bench_scale --jobs $(or $(JOBS),1000) --minutes $(or $(MINUTES),30) $(if $(MASTERS_ALONE),--masters-alone)

bench-scaling: $(READY)  ## Scaling algorithms: the fulfilment algorithm, Pollux, Paddle's experiment, and with DATA=… the Pollux workloads (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks.bench_fulfilment
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks.bench_pollux
	$(BIN)/python -m tests.benchmarks.bench_paddle
	$(if $(DATA),$(BIN)/python -m tests.benchmarks.bench_simulator --data $(DATA))

bench-master: $(READY)  ## A job's master with up to 300 agents; one job of 1,024 that loses 300 and its master (10 min; MEMBERS=)
	$(BIN)/python -m tests.benchmarks.bench_master
	$(BIN)/python -m tests.benchmarks.bench_big_job --members $(or $(MEMBERS),1024)

bench-brain: $(READY)  ## Brain: 100 to 3,000 jobs that report every 15 s, on SQLite and PostgreSQL (8 min)
	$(BIN)/python -m tests.benchmarks.bench_brain

# The versions of constraints.txt with the hashes of their files, for the image. No index URLs are written to the files.
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links --constraint constraints.txt
constraints: $(READY)  ## Resolve anew and write constraints.txt and requirements/
	$(BIN)/uv venv --quiet --clear $(VENV)-resolve
	$(BIN)/uv pip install --quiet --python $(VENV)-resolve/bin/python --editable '.[all]' --group dev --group docs --group release uv
	{ head -1 constraints.txt; $(BIN)/uv pip freeze --python $(VENV)-resolve/bin/python --exclude-editable; } > constraints.new
	mv constraints.new constraints.txt
	$(LOCK) --extra argo --extra brain --output-file requirements/image.txt pyproject.toml
	echo hatchling | $(LOCK) --output-file requirements/build.txt -
	rm -rf $(VENV)-resolve

changelog: $(READY)  ## The text of the fragments in changelog.d/; with VERSION=0.2.0, move it to CHANGELOG.md
	$(BIN)/towncrier build $(if $(VERSION),--yes --version $(VERSION),--draft --version VERSION)

IMAGE ?= localhost/edl-workflows:dev
image: $(READY)  ## The container image, and its SBOM beside it; BASE=…/python@sha256:… IMAGE=name:tag ARGS=… (buildah)
	@[[ "$(BASE)" == *@sha256:* ]] || { echo "BASE names the base image by its digest: NAME@sha256:…"; \
	echo "  skopeo inspect --format '{{.Name}}@{{.Digest}}' docker://docker.io/library/python:3.12-slim"; exit 1; }
	buildah build --tag $(IMAGE) --build-arg BASE=$(BASE) $(ARGS) --file Containerfile .
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --group release
	mkdir -p dist
	$(BIN)/python -m release.sbom --image $(IMAGE) --output dist/sbom.cdx.json

clean:  ## Remove the virtual environment and what was built
	rm -rf $(VENV) $(VENV)-torch .venv-bench dist site demo-output .mypy_cache .ruff_cache .pytest_cache .hypothesis
