"""Programs that travel with their jobs, and the jobs that are rendered from them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs.elastic_job.adapters import ADAPTERS, Adapter, Framework
from edl_workflows.core.jobs.elastic_job.from_program import (
    ProgramOptions,
    choose_strategy,
    recognize_framework,
    render_job,
)
from edl_workflows.core.jobs.elastic_job.model import DistributionStrategy, ElasticJob
from edl_workflows.core.jobs.elastic_job.program import MAX_BYTES, TrainingProgram
from edl_workflows.core.kubernetes import names

TRAINING = Path(__file__).parents[4] / "dags" / "training"
ALLREDUCE, SERVERS = DistributionStrategy.ALLREDUCE, DistributionStrategy.PARAMETER_SERVER
DECORATED = '''
    @task.elastic(
        workers=2,
    )
    @other
    def train(
        rate: float = 0.1, *, name: str = "x"
    ) -> dict:
        """Doubles."""
        return {"rate": rate * 2, "name": name}
'''


def script(text: str = "print('hello')\n") -> TrainingProgram:
    return TrainingProgram.of_script("train.py", text)


def attached(program: TrainingProgram, options: ProgramOptions) -> dict[str, Any]:
    manifest = render_job(program, options)
    manifest["metadata"]["name"] = "mnist"
    return program.attach(manifest)


def test_a_function_becomes_a_program_that_calls_it() -> None:
    """The program has the function without its decorators and indentation, and calls it with the arguments as
    JSON."""
    program = TrainingProgram.of_function(DECORATED, {"rate": 0.5, "name": 'it\'s "quoted"\n$(HOME)'})
    text = program.files[program.main]
    found: dict[str, Any] = {}
    exec(compile(text, "program.py", "exec"), found)

    assert found["train"](rate=2, name="n") == {"rate": 4, "name": "n"}
    assert "task.elastic" not in text
    called = text.split("call_function(train, ")[1].rstrip(" )\n")
    assert json.loads(eval(called)) == {"rate": 0.5, "name": 'it\'s "quoted"\n$(HOME)'}


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        ("lambda: 1", {}, "not that of one function"),
        ("async def train(): ...", {}, "not that of one function"),
        ("def a(): ...\ndef b(): ...", {}, "not that of one function"),
        ("x = lambda: 1", {}, "not that of one function"),
        ("def train(:", {}, "line 1: this is not valid Python"),
        ("def train(x=RATE): ...", {}, "uses RATE of the module around it"),
        ("def train():\n  def step(): return np.ones(outer)\n  return step", {}, "uses np, outer of the mod"),
        ("def train():\n  return [(lambda: scale)() for _ in 'ab']", {}, "uses scale of the module"),
        ("def train(): ...", {"x": object()}, "must be JSON values"),
        ("def train(): ...", {"x": float("nan")}, "must be JSON values"),
        ("def train(): ...", {"rates": {1: 0.5}}, "the arguments of train: rates has the key 1, which JSON"),
        ("def train(): ...", {"x": {"y": [0, ({None: 1},)]}}, r"x\.y\[1\]\[0\] has the key None, which JSON"),
        ("def train():\n  return '''" + "x" * MAX_BYTES + "'''", {}, "may have"),
    ],
    ids=[
        "lambda",
        "async",
        "two",
        "assigned",
        "syntax",
        "default",
        "in-a-function",
        "in-a-lambda",
        "object",
        "nan",
        "integer-key",
        "nested-key",
        "large",
    ],
)
def test_what_is_no_function_with_json_arguments_is_refused(
    source: str, arguments: dict[str, Any], message: str
) -> None:
    """The error says what is wrong with the source or the arguments."""
    with pytest.raises(InvalidError, match=message):
        TrainingProgram.of_function(source, arguments)


def test_a_function_may_use_what_it_makes_and_annotate_with_what_it_does_not() -> None:
    """A function may use imports, local and global variables that it defines, classes, itself and built-ins.
    Its annotations are not evaluated."""
    source = """
def train(x: np.ndarray = 1) -> Anything:
    import math, numpy as np
    from json import dumps as write
    global seen
    seen = [np, write]
    y: Tensor = math.pi
    class Model:
        z = 2
        def step(self) -> Unknown:
            return super().__init__() or y + self.z + len(seen)
    try:
        return [Model().step() for _ in range(2)]
    except ValueError as error:
        return train(str(error))
"""
    program = TrainingProgram.of_function(source)
    found: dict[str, Any] = {"__name__": "program"}
    exec(compile(program.files[program.main], "program.py", "exec"), found)

    assert callable(found["train"])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("train.py", "import (", "train.py, line 1: this is not valid Python"),
        ("train.py", "x = '\0'", "not valid Python"),
        ("train.py", "x = '\ud800'", "not valid Python"),
        ("train.py", "x" + "[" * 10_000, "not valid Python"),
        ("train.py", "#" * (MAX_BYTES + 1), f"may have {MAX_BYTES}; put the code into the image"),
        ("train.sh", "x = 1", "a file's name ends with .py"),
        ("../train.py", "x = 1", "a file's name ends with .py"),
        ("a/b.py", "x = 1", "a file's name ends with .py"),
        (".py", "x = 1", "a file's name ends with .py"),
        ("-c.py", "x = 1", "a file's name ends with .py"),
    ],
    ids=["syntax", "nul", "surrogate", "nested", "large", "shell", "parent", "folder", "nameless", "option"],
)
def test_what_is_no_small_python_script_is_refused(name: str, text: str, message: str) -> None:
    """A file that is too large or is not valid Python is rejected before anything is created, and the error
    says what to do."""
    with pytest.raises(InvalidError, match=message):
        TrainingProgram.of_script(name, text)


@pytest.mark.parametrize("name", ["train.py", "my-script.py", "train.v2.py", "2026_run.py"])
def test_a_script_has_the_name_that_its_author_gave_it(name: str) -> None:
    """A script may have any plain file name, although only some names can be imported as modules."""
    assert TrainingProgram.of_script(name, "x = 1").main == name


def test_too_many_files_are_refused() -> None:
    """A program with too many files is rejected, since it is meant to be a script with a few modules."""
    others = {f"module_{index}.py": "" for index in range(40)}
    with pytest.raises(InvalidError, match="at most 32"):
        TrainingProgram.of_script("train.py", "import module_1", others)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,8}\.py", fullmatch=True), st.text(max_size=50), min_size=1, max_size=8
    )
)
def test_the_digest_is_that_of_the_content(files: dict[str, str]) -> None:
    """Equal programs have equal digests, in whatever order their files are. The program can be read back from
    its text."""
    main = min(files)
    one = TrainingProgram(main=main, files=files)
    other = TrainingProgram(main=main, files=dict(reversed(files.items())))

    assert one.digest == other.digest
    assert TrainingProgram.model_validate_json(one.text) == one
    assert TrainingProgram(main=main, files={**files, main: files[main] + "#"}).digest != one.digest


@pytest.mark.parametrize(
    ("file", "framework", "strategy"),
    [
        ("train_digits.py", Framework.TENSORFLOW, SERVERS),
        ("train_digits_allreduce.py", Framework.TENSORFLOW, ALLREDUCE),
        ("train_digits_torch.py", Framework.TORCH, ALLREDUCE),
        ("train_hugging_face.py", Framework.TORCH, ALLREDUCE),
        ("train_lightning.py", Framework.TORCH, ALLREDUCE),
        ("train_keras.py", Framework.TENSORFLOW, ALLREDUCE),
        ("own_loop.py", Framework.TORCH, ALLREDUCE),
        ("own_loop_elastic.py", Framework.TORCH, ALLREDUCE),
        ("train_digits_numpy.py", Framework.NUMPY, SERVERS),
        ("train_digits_sockets.py", Framework.NUMPY, ALLREDUCE),
        ("own_script.py", Framework.NUMPY, SERVERS),
        ("own_script_workers.py", Framework.NUMPY, ALLREDUCE),
    ],
)
def test_framework_and_strategy_follow_from_the_imports(
    file: str, framework: Framework, strategy: DistributionStrategy
) -> None:
    """The framework and the strategy of each example program follow from its imports."""
    program = TrainingProgram.of_script(file, (TRAINING / file).read_text())

    assert recognize_framework(program) is framework
    assert choose_strategy(program, ProgramOptions()) is strategy


@pytest.mark.parametrize(
    ("imports", "strategy"),
    [("progress", ALLREDUCE), ("progress, report_result", ALLREDUCE), ("connect, progress", SERVERS)],
)
def test_a_program_that_only_reports_stays_an_unmodified_program(
    imports: str, strategy: DistributionStrategy
) -> None:
    """A program in NumPy that reports its progress finds its group in the environment, as before."""
    program = TrainingProgram.of_script("train.py", f"from edl_workflows.training import {imports}")
    assert choose_strategy(program, ProgramOptions()) is strategy


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.module.rpartition(".")[2])
@pytest.mark.parametrize("form", ["from {0} import *", "from {1} import {2}", "import {0} as adapter"])
def test_each_adapter_decides_about_strategy_and_framework(adapter: Adapter, form: str) -> None:
    """However a program imports an adapter, the adapter's row decides about strategy and framework."""
    package, _, name = adapter.module.rpartition(".")
    program = script(form.format(adapter.module, package, name))

    assert choose_strategy(program, ProgramOptions()) is adapter.strategy
    assert recognize_framework(program) is adapter.framework


@pytest.mark.parametrize("options", [ProgramOptions(), ProgramOptions(servers=1)], ids=["workers", "servers"])
def test_an_adapter_that_is_not_registered_is_refused(options: ProgramOptions) -> None:
    """A program that imports only an adapter without a row is rejected: its workers must not silently train
    with parameter servers. The error lists the adapters and the registry. With a strategy, the job is
    rendered."""
    program = script("from edl_workflows.training.frameworks.jax_collective import training")
    with pytest.raises(InvalidError, match=r"frameworks\.jax_collective.*torch_collective.*adapters\.py"):
        render_job(program, options)

    assert choose_strategy(program, replace(options, strategy=ALLREDUCE)) is ALLREDUCE


def test_an_unchanged_program_finds_its_group_in_the_environment() -> None:
    """A program that does not import the library gets the collective strategy, which sets TF_CONFIG and the
    variables of PyTorch's launchers."""
    for text in ("import torch", "import tensorflow", "import socket"):
        assert choose_strategy(script(text), ProgramOptions()) is ALLREDUCE
    function = TrainingProgram.of_function("def train(): import numpy")
    assert choose_strategy(function, ProgramOptions()) is ALLREDUCE
    assert choose_strategy(script(), ProgramOptions(strategy=SERVERS)) is SERVERS


def test_the_job_is_valid_and_receives_the_program() -> None:
    """Workers and parameter servers get the program in an environment variable, from its ConfigMap. Arguments
    reach the program unchanged."""
    program = script("import tensorflow\nimport edl_workflows.training.frameworks.tensorflow\n")
    options = ProgramOptions(
        workers=2,
        servers=1,
        arguments=("--folder=$(HOME)", "$x"),
        checkpoints="/ck",
        env={"A": "$(B)"},
        resources={"cpu": "1"},
        limits={"nvidia.com/gpu": "1"},
        ttl_seconds=60,
    )
    job = ElasticJob.parse(attached(program, options))

    assert {role: spec.replicas for role, spec in job.spec.replica_specs.items()} == {"worker": 2, "ps": 1}
    for spec in job.spec.replica_specs.values():
        (container,) = spec.template["spec"]["containers"]
        variables = {one["name"]: one for one in container["env"]}
        reference = variables[names.ENV_PROGRAM]["valueFrom"]["configMapKeyRef"]
        assert reference == {"name": program.config_map_name("mnist"), "key": "program.json"}
        assert variables[names.ENV_PROGRAM_DIGEST]["value"] == program.digest
        assert variables[names.ENV_CHECKPOINT_DIR]["value"] == "/ck"
        assert variables["A"]["value"] == "$$(B)"
        assert container["args"] == ["--folder=$$(HOME)", "$$x"]
        assert container["resources"] == {"requests": {"cpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}
    assert job.spec.ttl_seconds_after_finished == 60


TEMPLATE = """
metadata: {labels: {team: vision}}
spec:
  serviceAccountName: trainer
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
  containers:
  - name: trainer
    image: registry.example.com/train:1
    env: [{name: SECRET, valueFrom: {secretKeyRef: {name: s, key: k}}}]
    volumeMounts: [{name: data, mountPath: /data}]
  - {name: sidecar, image: registry.example.com/proxy:1}
"""


def test_a_users_pod_template_stays() -> None:
    """Image, volumes, secrets, labels and sidecars of the user's pod template stay."""
    template = yaml.safe_load(TEMPLATE)
    job = ElasticJob.parse(attached(script(), ProgramOptions(template=template, env={"MORE": "1"})))
    found = job.spec.replica_specs["worker"].template
    first, sidecar = found["spec"]["containers"]

    assert found["metadata"]["labels"] == {"team": "vision"}
    assert found["spec"]["serviceAccountName"] == "trainer"
    assert found["spec"]["volumes"] == template["spec"]["volumes"]
    assert (first["name"], first["image"]) == ("trainer", "registry.example.com/train:1")
    assert first["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]
    assert {one["name"] for one in first["env"]} >= {"SECRET", "MORE", names.ENV_PROGRAM}
    assert sidecar == template["spec"]["containers"][1]


@pytest.mark.parametrize(
    ("read_only", "mounted", "added"),
    [(True, "/data", True), (True, "/tmp/", False), (False, "/data", False)],
    ids=["read-only", "something is at /tmp", "writable"],
)
def test_a_program_can_be_written_on_a_read_only_filesystem(
    read_only: bool, mounted: str, added: bool
) -> None:
    """On a read-only filesystem, the pod gets an empty volume at /tmp, unless something is mounted there."""
    template = yaml.safe_load(TEMPLATE)
    trainer, sidecar = template["spec"]["containers"]
    trainer["volumeMounts"][0]["mountPath"] = mounted
    for container in (trainer, sidecar):
        container["securityContext"] = {"readOnlyRootFilesystem": read_only}
    found = attached(script(), ProgramOptions(template=template))["spec"]["replicaSpecs"]["worker"][
        "template"
    ]
    first, other = found["spec"]["containers"]

    mounts = {mount["mountPath"]: mount["name"] for mount in first["volumeMounts"]}
    assert mounts == {mounted: "data"} | ({"/tmp": "edl-tmp"} if added else {})
    empty = [volume for volume in found["spec"]["volumes"] if "emptyDir" in volume]
    assert empty == ([{"name": "edl-tmp", "emptyDir": {}}] if added else [])
    assert other == sidecar


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ProgramOptions(servers=1, strategy=ALLREDUCE), "has no parameter servers"),
        (ProgramOptions(workers=3, max_workers=2), "3 workers are more than the maximum of 2"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: ProgramOptions, message: str) -> None:
    """Options that contradict each other are rejected, and the error says what to change."""
    with pytest.raises(InvalidError, match=message):
        render_job(script(), options)


def test_the_config_map_belongs_to_the_job() -> None:
    """The ConfigMap is deleted with the job, is immutable, and has another name for each program."""
    manifest = attached(script(), ProgramOptions())
    manifest["metadata"] |= {"uid": "u-1", "namespace": "vision"}
    job = ElasticJob.parse(manifest)
    made = script().to_config_map(job)

    assert made["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    assert made["metadata"]["namespace"] == "vision"
    assert made["immutable"] is True
    assert made["metadata"]["name"] != script("x = 1").to_config_map(job)["metadata"]["name"]


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("import tensorflow as tf\ntf.distribute.ParameterServerStrategy(resolver)", True),
        ("import tensorflow as tf\ntf.distribute.experimental.ParameterServerStrategy(resolver)", True),
        ("from tensorflow.distribute.coordinator import ClusterCoordinator", True),
        ("import tensorflow as tf\ntf.compat.v1.distribute.experimental.ParameterServerStrategy()", False),
        ("import tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()", False),
        ("strategy = 'ParameterServerStrategy'", False),
    ],
)
def test_programs_that_need_a_cluster_that_does_not_change(text: str, refused: bool) -> None:
    """A program with TensorFlow's coordinator would end with "There must be at least one worker". It is
    refused before anything is created, and told which job runs it."""
    program = TrainingProgram.of_script("train.py", text)
    if not refused:
        assert render_job(program, ProgramOptions(workers=2))
        return
    with pytest.raises(InvalidError, match="TFJob, where it runs as it is"):
        render_job(program, ProgramOptions(workers=2, servers=1))


def test_a_program_for_both_kinds_of_jobs() -> None:
    """A program with Keras's adapter trains with parameter servers if the job has any."""
    program = TrainingProgram.of_script("train.py", "import edl_workflows.training.frameworks.keras")
    assert choose_strategy(program, ProgramOptions(servers=1)) is SERVERS
    assert render_job(program, ProgramOptions(servers=1))["spec"]["replicaSpecs"]["ps"]["replicas"] == 1
