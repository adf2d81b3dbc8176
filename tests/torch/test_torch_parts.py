"""Ranks save a state together, each its part; any number of ranks restores it, and so does PyTorch itself."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint
from torch.multiprocessing import spawn

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.training.checkpoints import tensors
from edl_workflows.training.checkpoints.checkpoint_parts import Part
from edl_workflows.training.checkpoints.tensor_parts import OFFSETS, assemble
from edl_workflows.training.checkpoints.tensors import Loaded
from edl_workflows.training.frameworks.torch_parts import part_of_state, restore_state
from edl_workflows.training.frameworks.torch_state import from_saved_state
from tests.torch.sharded_ranks import run_rank

RANKS = 3


def replicated_state(seed: int) -> dict[str, Any]:
    """A state that all ranks hold alike."""
    source = torch.Generator().manual_seed(seed)
    weights = {f"layer-{i}": torch.randn(4 + i, 8, generator=source) for i in range(7)}
    return {
        "model": weights
        | {"half": torch.randn(9, generator=source).to(torch.bfloat16), "empty": torch.zeros(0)},
        "optimizer": {
            "state": {0: {"step": torch.tensor(float(seed))}},
            "param_groups": [{"lr": 0.1 * seed}],
        },
    }


def save_parts(folder: Path, state: Any, ranks: int = RANKS) -> list[Loaded]:
    """The parts of all ranks, from their files."""
    for rank in range(ranks):
        part = part_of_state(state, 7, {"data": "here"}, Part(rank, ranks))
        tensors.write_state(folder / part.part.file, part)
    return [tensors.load(folder / Part(rank, ranks).file) for rank in range(ranks)]


def flat(state: Any) -> dict[str, torch.Tensor]:
    """The tensors of `replicated_state`."""
    step: torch.Tensor = state["optimizer"]["state"][0]["step"]
    return {**state["model"], "step": step}


def test_ranks_divide_what_they_hold_alike(tmp_path: Path) -> None:
    """Each tensor is saved by one rank, and each rank saves about the same number of bytes."""
    parts = save_parts(tmp_path, replicated_state(1))
    names = [[name for name in part.tensors if name != "skeleton"] for part in parts]
    sizes = [sum(part.tensors[name].nbytes for name in mine) for part, mine in zip(parts, names, strict=True)]

    assert sorted(itertools.chain(*names)) == sorted(
        [f"model/{name}" for name in replicated_state(1)["model"]] + ["optimizer/state/0/step"]
    )
    assert max(sizes) < 1.3 * min(sizes)


def test_parts_make_up_the_whole_state(tmp_path: Path) -> None:
    """A reader that knows nothing of ranks gets the state and the metadata as if a single process had saved
    them."""
    state = replicated_state(1)
    loaded = assemble(save_parts(tmp_path, state), "here")

    found = from_saved_state(loaded.tensors)
    assert all(torch.equal(one, flat(found)[name]) for name, one in flat(state).items())
    assert found["optimizer"]["param_groups"] == [{"lr": 0.1}]
    assert loaded.metadata == {"data": "here"}


def test_state_is_restored_in_place(tmp_path: Path) -> None:
    """The existing tensors of the model get the saved values; values that are not tensors are replaced."""
    state, template = replicated_state(1), replicated_state(2)
    held = template["model"]["layer-0"]
    restored = restore_state(template, save_parts(tmp_path, state), "here")

    assert restored["model"]["layer-0"].data_ptr() == held.data_ptr()
    assert all(torch.equal(one, flat(restored)[name]) for name, one in flat(state).items())
    assert restored["optimizer"]["param_groups"] == [{"lr": 0.1}]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_dcp_reads_parts_that_ranks_divided(tmp_path: Path) -> None:
    """A single process without a group and without this package reads the folder."""
    state = replicated_state(1)
    del state["model"]["empty"]
    save_parts(tmp_path, state)
    into = {f"model/{name}": torch.zeros_like(one) for name, one in state["model"].items()}

    checkpoint.load(into, storage_reader=checkpoint.HuggingFaceStorageReader(str(tmp_path)), no_dist=True)

    assert all(torch.equal(into[f"model/{name}"], one) for name, one in state["model"].items())


def changed(template: dict[str, Any], name: str, tensor: torch.Tensor | None) -> dict[str, Any]:
    """A model of another form."""
    template["model"].pop(name)
    return template if tensor is None else template | {"model": template["model"] | {name: tensor}}


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (changed(replicated_state(2), "layer-0", torch.zeros(4, 7)), "another type or shape"),
        (changed(replicated_state(2), "layer-0", torch.zeros(5, 8)), "lacks values of model/layer-0"),
        (changed(replicated_state(2), "layer-0", torch.zeros(32)), "another type or shape"),
        (changed(replicated_state(2), "half", torch.zeros(9)), "another type or shape"),
        (changed(replicated_state(2), "layer-0", None), "only the checkpoint has tensor model/layer-0"),
    ],
    ids=["fewer columns", "more rows", "flat", "type", "without"],
)
def test_another_model_is_refused(tmp_path: Path, template: Any, said: str) -> None:
    """If the model's tensors differ from the checkpoint's, restoring raises an error that says how."""
    with pytest.raises(CheckpointError, match=said):
        restore_state(template, save_parts(tmp_path, replicated_state(1)), "here")


def test_missing_part_is_noticed(tmp_path: Path) -> None:
    """A checkpoint with a missing part is not restored."""
    parts = save_parts(tmp_path, replicated_state(1))[:-1]
    with pytest.raises(CheckpointError, match="a part is missing"):
        restore_state(replicated_state(2), parts, "here")


@pytest.mark.parametrize("said", ["{}", "[1]", '{"model/layer-0": {"saved_offsets": [0]}}', "nonsense"])
def test_part_without_its_place_is_refused(tmp_path: Path, said: str) -> None:
    """Metadata without the position of each tensor is an error."""
    (part, *_) = save_parts(tmp_path, replicated_state(1))
    with pytest.raises(CheckpointError, match="where its tensors belong"):
        assemble([Loaded(part.tensors, {OFFSETS: said})], "here")


def test_four_ranks_save_and_three_and_two_restore(tmp_path: Path) -> None:
    """Four ranks save with FSDP2, as one group and as two groups of two with copies. Three and two ranks
    restore the state, with parameters, buffers and Adam's averages equal to the bit, and so does PyTorch's
    own reader."""
    spawn(run_rank, (str(tmp_path),), nprocs=4)
