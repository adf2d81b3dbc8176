"""The registry of training adapters: modules of the library from whose import the strategy of a program's job
follows. `edl run`, the client and ``@task.elastic`` read it, and so do the tests of the documentation.
"""

from dataclasses import dataclass
from enum import StrEnum

from edl_workflows.core.jobs.elastic_job.model import DistributionStrategy

FRAMEWORKS = "edl_workflows.training.frameworks"
"""The package whose modules with an `__all__` are adapters."""


class Framework(StrEnum):
    """The framework of a training program; of a program that imports several, the last of these."""

    NUMPY = "numpy"
    TORCH = "torch"
    TENSORFLOW = "tensorflow"


@dataclass(frozen=True)
class Adapter:
    """A row of the registry.

    Attributes:
        module: the module that programs import; its submodules count as well.
        framework: the framework of these programs.
        strategy: the strategy of their jobs.
        extra: the extra of this package that installs what the module imports.
        served: whether its programs train with parameter servers if there are any.
    """

    module: str
    framework: Framework
    strategy: DistributionStrategy
    extra: str
    served: bool = False


_ALLREDUCE = DistributionStrategy.ALLREDUCE

ADAPTERS = (
    Adapter(
        f"{FRAMEWORKS}.tensorflow",
        Framework.TENSORFLOW,
        DistributionStrategy.PARAMETER_SERVER,
        "tensorflow",
    ),
    Adapter(f"{FRAMEWORKS}.tensorflow_collective", Framework.TENSORFLOW, _ALLREDUCE, "tensorflow"),
    Adapter(f"{FRAMEWORKS}.keras", Framework.TENSORFLOW, _ALLREDUCE, "tensorflow", served=True),
    Adapter(f"{FRAMEWORKS}.torch_collective", Framework.TORCH, _ALLREDUCE, "torch"),
    Adapter(f"{FRAMEWORKS}.torch_replica", Framework.TORCH, _ALLREDUCE, "torch"),
    Adapter(f"{FRAMEWORKS}.hugging_face", Framework.TORCH, _ALLREDUCE, "huggingface"),
    Adapter(f"{FRAMEWORKS}.lightning", Framework.TORCH, _ALLREDUCE, "lightning"),
    Adapter("edl_workflows.training.collective", Framework.NUMPY, _ALLREDUCE, "numpy"),
)

PACKAGES = {
    "keras": Framework.TENSORFLOW,
    "tensorflow": Framework.TENSORFLOW,
    "lightning": Framework.TORCH,
    "torch": Framework.TORCH,
    "transformers": Framework.TORCH,
}
"""Package that a program imports → its framework."""
