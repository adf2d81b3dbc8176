"""Recognizes a program whose workers would each train a model of their own, from its text. Pure.

Several workers run the same program. Unless it forms a group with the others, each trains its own copy from
its own start, and all write the same files. The text shows that only of a program that is visible as a whole:
with imports from elsewhere, or with any sign of a group, the answer is no, and the agent watches whether the
processes meet (`edl_workflows.services.agent.group_connections`).
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from edl_workflows.core.jobs.elastic_job.adapters import ADAPTERS
from edl_workflows.core.jobs.elastic_job.from_program import ProgramOptions, imported_modules, is_within
from edl_workflows.core.jobs.elastic_job.program import TrainingProgram

CONDITION = "SeparateCopies"
"""Type of the condition, and reason of the Event."""
CORRECTION = (
    "Use one worker, or let the workers train one model: with PyTorch's DistributedDataParallel, "
    "TensorFlow's MultiWorkerMirroredStrategy, or an adapter of this package "
    "(docs/how-to/run-your-own-script.md, Several workers)"
)
NO_GROUP = (
    "each worker trains its own copy of the model: the program forms no group with the other workers, so "
    "nothing combines what they learn, and files of the same path overwrite each other. " + CORRECTION
)
"""The warning for a program that does not use the library."""
OWN_COPIES = (
    "each worker trains its own copy of the model, and only the chief's is saved: the program takes its data "
    "from job.batches or job.shards, and nothing combines what the workers learn. Scale the job to one "
    "worker, or use an adapter of edl_workflows.training.frameworks or edl_workflows.training.collective "
    "(docs/how-to/run-your-own-script.md, Several workers). A program that combines the copies itself calls "
    "job.declare_one_model()"
)
"""The warning for a program that takes its data from the job. Stages show 500 characters of it."""

_ALIKE = "each worker trains its own copy of the model"
"""How each version of the warning begins."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LIBRARY = "edl_workflows.training"
_NUMERIC = _words(
    "flax jax keras lightgbm lightning numpy optax pytorch_lightning scipy sklearn tensorflow tf_keras torch "
    "transformers xgboost"
)
_INERT = _NUMERIC | _words(
    "PIL albumentations absl click cv2 datasets edl_workflows einops evaluate fsspec h5py huggingface_hub "
    "imageio joblib matplotlib pandas polars psutil pyarrow pydantic requests rich safetensors seaborn "
    "sentencepiece skimage tensorboard tensorboardX tensorflow_datasets tiktoken timm tokenizers torchaudio "
    "torchinfo torchmetrics torchtext torchvision tqdm typer typing_extensions wandb yaml"
)
"""Packages that combine nothing unless the program's text says so."""
_DYNAMIC = _words("importlib runpy subprocess")
"""Modules with which a program runs code that is not in its text."""

_TRAINS = re.compile(
    r".*(grad|epoch|optimi[sz]er|learning_rate).*|lr|fit|partial_fit|backward|minimize|train_on_batch",
    re.IGNORECASE,
)
"""Names in a program that trains; one that only predicts or prepares data has none of them."""
_GROUP_NAMES = _words(
    # PyTorch and Lightning
    "init_process_group init_device_mesh DeviceMesh init_rpc TCPStore FileStore DistributedDataParallel DDP "
    "FullyShardedDataParallel FSDP fully_shard distribute_tensor strategy= num_nodes= LightningCLI "
    # TensorFlow, Keras and JAX
    "MultiWorkerMirroredStrategy CollectiveAllReduceStrategy ParameterServerStrategy "
    "ParameterServerStrategyV1 ParameterServerStrategyV2 TPUStrategy ClusterSpec train_and_evaluate "
    "experimental_connect_to_cluster keras.distribution jax.distributed multihost_utils "
    # sockets, and other programs
    "create_server create_connection open_connection start_server listen Listener HTTPServer "
    "ThreadingHTTPServer exec"
)
"""Names with which a program forms a group; with "=" those of arguments."""
_JOB_COMBINES = _words("declare_one_model sync barrier")
_GROUP_TEXTS = re.compile(
    r"(PET_|EDL_|OMPI_|SLURM_)\w+|MASTER_ADDR|MASTER_PORT|((LOCAL_|NODE_|GROUP_)?RANK)|WORLD_SIZE|TF_CONFIG|"
    r"torchrun|torch\.distributed\.\w+|accelerate|mpirun|horovodrun|deepspeed"
)
"""Variables that tell a process about its group, and launchers."""
_JOB_DATA, _JOB_SAVES = frozenset({"batches", "shards"}), frozenset({"save_with", "publish"})


def find_copies(program: TrainingProgram, options: ProgramOptions) -> str:
    """Why the workers of a program would train separate copies, as far as its text shows it; "" if not."""
    return ProgramText(program).warning if options.workers > 1 else ""


def is_warning(text: str) -> bool:
    """Whether a job's warning says that its workers train separate copies."""
    return text.startswith(_ALIKE)


@dataclass(frozen=True)
class ProgramText:
    """What the text of a program shows about its workers."""

    program: TrainingProgram

    @cached_property
    def trains(self) -> bool:
        """Whether it trains a model, and doesn't only use one."""
        numeric = any(module.partition(".")[0] in _NUMERIC for module in self._modules)
        return numeric and any(_TRAINS.fullmatch(name) for name in self._names)

    @property
    def warning(self) -> str:
        """Why several workers would train separate copies; "" if the text doesn't show that they would."""
        if not self.trains or self._has_adapter or self._group_signs:
            return ""
        if self._takes_job_data:
            return OWN_COPIES if self._names & _JOB_SAVES else ""
        return "" if self._hidden_modules else NO_GROUP

    @property
    def never_trains(self) -> bool:
        """Whether the text shows that it trains no model."""
        return not self.trains and not self._hidden_modules

    @property
    def uses_library(self) -> bool:
        """Whether its processes report to the master by themselves."""
        return self._has_adapter or self._takes_job_data

    @property
    def _takes_job_data(self) -> bool:
        return self._connects and bool(self._names & _JOB_DATA)

    @property
    def _connects(self) -> bool:
        return f"{_LIBRARY}.connect" in self._modules or (
            _LIBRARY in self._modules and "training.connect" in self._names
        )

    @property
    def _has_adapter(self) -> bool:
        return any(is_within(module, adapter.module) for adapter in ADAPTERS for module in self._modules)

    @property
    def _group_signs(self) -> bool:
        trainer = any(re.fullmatch(r"transformers\.(.*\.)?\w*Trainer", module) for module in self._modules)
        named = any(name.endswith("ClusterResolver") for name in self._names)
        combined = self._connects and bool(self._names & _JOB_COMBINES)
        formed = bool((self._names | self._modules) & _GROUP_NAMES)
        return trainer or named or combined or formed or self._names_variables

    @cached_property
    def _names_variables(self) -> bool:
        return any(_GROUP_TEXTS.fullmatch(text) for tree in self._trees for text in _texts(tree))

    @property
    def _hidden_modules(self) -> set[str]:
        """Imported packages that neither travel with it nor are known to combine nothing."""
        own = {name.partition("/")[0].removesuffix(".py") for name in self.program.files}
        visible = own | _INERT | (sys.stdlib_module_names - _DYNAMIC)
        return {module.partition(".")[0] for module in self._modules} - visible

    @cached_property
    def _modules(self) -> frozenset[str]:
        return frozenset(imported_modules(self.program))

    @cached_property
    def _trees(self) -> tuple[ast.Module, ...]:
        return tuple(ast.parse(text) for text in self.program.files.values())

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(name for tree in self._trees for name in _identifiers(tree))


def _identifiers(tree: ast.Module) -> Iterator[str]:
    """All identifiers of a module: variables, attributes, functions and imported names; names of arguments
    of calls, also with "="; attributes of variables, also as ``variable.attribute``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
            if isinstance(node.value, ast.Name):
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Call):
            yield from (f"{argument.arg}=" for argument in node.keywords if argument.arg)
            if _makes_trainer(node):
                yield "strategy="
        elif isinstance(node, ast.arg | ast.keyword):
            yield node.arg or ""
        elif isinstance(node, ast.alias):
            yield node.name.rpartition(".")[2]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def _makes_trainer(call: ast.Call) -> bool:
    """Whether it makes a trainer of Lightning with arguments that the text doesn't show."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in ("Trainer", "Fabric") and any(argument.arg is None for argument in call.keywords)


def _texts(tree: ast.Module) -> Iterator[str]:
    """All string constants, such as names of environment variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
