"""Which programs would train separate copies of a model in several workers, as their text shows."""

import contextlib
import re
import textwrap
from pathlib import Path

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs.elastic_job.from_program import ProgramOptions
from edl_workflows.core.jobs.elastic_job.program import TrainingProgram
from edl_workflows.core.jobs.elastic_job.separate_copies import (
    NO_GROUP,
    OWN_COPIES,
    ProgramText,
    find_copies,
    is_warning,
)
from edl_workflows.pipelines.client.train import read_script
from edl_workflows.pipelines.waiting.outputs import MAX_WARNING

ROOT = Path(__file__).parents[4]
TORCH = """
import torch
from torch import nn
model = nn.Linear(4, 1)
{setup}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    loss = model(torch.ones(8, 4)).sum()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
"""
KERAS = """
import tensorflow as tf
{setup}
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
model.fit(x, y, epochs=3)
"""
NUMPY = """
import numpy as np
{setup}
weights = np.zeros(4)
for epoch in range(3):
    gradient = x.T @ (x @ weights - y)
    weights -= 0.1 * gradient
np.save("weights.npy", weights)
"""
LIGHTNING = """
import torch
from lightning import pytorch as pl
class Net(pl.LightningModule):
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
trainer = pl.Trainer(max_epochs=3{setup})
trainer.fit(Net(), data)
"""
JAX = """
import jax
import jax.numpy as jnp
{setup}
update = jax.value_and_grad(loss)
for epoch in range(3):
    value, gradient = update(weights)
"""
EDL = """
import numpy as np
from edl_workflows.training import connect
with connect() as job:
    {setup}
    for batch in job.batches("d", size=10, epochs=3):
        gradient = batch.indices
"""

ALONE = {
    "plain torch": TORCH.format(setup="# one could use DistributedDataParallel and RANK here"),
    "torch that asks whether there is a group": TORCH.format(
        setup="import torch.distributed as dist\nmain = not dist.is_initialized()"
    ),
    "torch with the usual libraries": TORCH.format(
        setup="import argparse, json, os, random, tqdm, torchvision\nimport matplotlib.pyplot as plt"
    ),
    "torch on all GPUs of its machine": TORCH.format(setup="model = nn.DataParallel(model)"),
    "Keras fit": KERAS.format(setup=""),
    "Keras 3 fit": KERAS.replace("tf.keras", "keras").format(setup="import keras"),
    "Keras fit with progress": KERAS.format(
        setup="from edl_workflows.training.keras_progress import KerasProgress"
    ),
    "Keras fit on all GPUs of its machine": KERAS.format(setup="strategy = tf.distribute.MirroredStrategy()"),
    "Lightning with one process": LIGHTNING.format(setup=""),
    "numpy": NUMPY.format(setup=""),
    "scikit-learn": "from sklearn.linear_model import SGDClassifier\nSGDClassifier().fit(x, y)\n",
    "jax": JAX.format(setup=""),
}
TOGETHER = {
    "DDP": TORCH.format(
        setup="import torch.distributed as dist\ndist.init_process_group()\n"
        "model = nn.parallel.DistributedDataParallel(model)"
    ),
    "a guarded group": TORCH.format(
        setup="import os\nif 'RANK' in os.environ:\n    torch.distributed.init_process_group('gloo')"
    ),
    "FSDP": TORCH.format(
        setup="from torch.distributed.device_mesh import init_device_mesh\ninit_device_mesh('cpu', (2,))"
    ),
    "accelerate": TORCH.format(
        setup="from accelerate import Accelerator\nmodel = Accelerator().prepare(model)"
    ),
    "Lightning with DDP": LIGHTNING.format(setup=', strategy="ddp", num_nodes=2'),
    "Lightning with settings": LIGHTNING.format(setup=", **settings"),
    "Trainer": "from transformers import Trainer, TrainingArguments\n"
    "Trainer(model, TrainingArguments(learning_rate=1e-4)).train()\n",
    "MultiWorkerMirrored": KERAS.format(
        setup="strategy = tf.distribute.MultiWorkerMirroredStrategy()\nstrategy.scope().__enter__()"
    ),
    "parameter servers of TensorFlow": KERAS.format(
        setup="resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()"
    ),
    "own sockets": NUMPY.format(setup='import os, socket\nhost, rank = os.environ["MASTER_ADDR"], 0'),
    "a launcher": TORCH.format(setup='import subprocess\nsubprocess.run(["torchrun", "other.py"])'),
    "jax with a group": JAX.format(setup="jax.distributed.initialize()"),
    "keras with a group": KERAS.format(setup="import keras\nkeras.distribution.initialize()"),
    "horovod": KERAS.format(setup="import horovod.tensorflow as hvd\nhvd.init()"),
    "a package of the image": TORCH.format(setup="from company.training import wrap\nmodel = wrap(model)"),
    "predictions": "import torch\nmodel = torch.load('model.pt')\nprint(model(torch.ones(4)))\n",
    "each rank its part": 'import os\nimport numpy as np\nprint(np.ones(4) * int(os.environ["RANK"]))\n',
    "no model": "print('hello')\n",
    "the job's data, and nothing is saved": EDL.format(setup="pass"),
    "the job's data, and the workers meet": EDL.format(setup="job.save_with(save); job.barrier('step')"),
    "one model by declaration": EDL.format(setup="job.save_with(save); job.declare_one_model()"),
}


def warning(text: str, workers: int = 2) -> str:
    return find_copies(TrainingProgram.of_script("train.py", text), ProgramOptions(workers=workers))


@pytest.mark.parametrize("shape", ALONE)
def test_programs_without_a_group(shape: str) -> None:
    """A program that trains, shows all of its code and forms no group is found, with several workers only."""
    assert warning(ALONE[shape]) == NO_GROUP
    assert warning(ALONE[shape], workers=1) == ""


@pytest.mark.parametrize("shape", TOGETHER)
def test_programs_with_a_group(shape: str) -> None:
    """Any sign of a group, code that is not visible, or the lack of training leaves it to the running job."""
    assert warning(TOGETHER[shape]) == ""


def test_the_jobs_data_in_copies() -> None:
    """A program that saves what it learned from the job's data, without an adapter, trains copies."""
    assert warning(EDL.format(setup="job.save_with(save)")) == OWN_COPIES


def test_a_function_is_a_program() -> None:
    """A function is judged by its own text."""
    body = "\n".join(f"    {line}" for line in TORCH.format(setup="").splitlines())
    function = TrainingProgram.of_function(f"def train():\n{body}\n")
    assert find_copies(function, ProgramOptions(workers=2)) == NO_GROUP


def test_the_example_programs() -> None:
    """Of the example programs a plain loop is found, and those that train from the job's data without an
    adapter; no other."""
    found = {
        path.name
        for path in sorted((ROOT / "dags/training").glob("*.py"))
        if find_copies(read_script(path), ProgramOptions(workers=2))
    }
    assert found == {"own_loop.py", "own_script.py", "train_digits_numpy.py"}


def test_the_programs_of_the_documentation() -> None:
    """Of the programs in the pages only that of the tutorial's first part is for one worker alone."""
    found = set()
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            with contextlib.suppress(InvalidError):  # a fragment
                if warning(textwrap.dedent(block)):
                    found.add((page.name, block.splitlines()[0][:50]))
    assert found == {("own-script.md", '"""Train on the digits with NumPy: the script of t')}


def test_the_warnings() -> None:
    """Both fit into what stages show of a warning, and the controller recognizes both."""
    assert all(is_warning(text) and len(text) <= MAX_WARNING for text in (NO_GROUP, OWN_COPIES))
    assert not is_warning("no checkpoint could be saved")


def test_what_is_left_to_the_program_and_to_the_agent() -> None:
    """The agent watches what the text leaves open, and neither programs that report by themselves nor those
    that never train."""
    assert ProgramText(TrainingProgram.of_script("a.py", EDL.format(setup="pass"))).uses_library
    never = {shape for shape, text in TOGETHER.items()
             if ProgramText(TrainingProgram.of_script("a.py", text)).never_trains}  # fmt: skip
    assert never == {"predictions", "each rank its part", "no model"}
