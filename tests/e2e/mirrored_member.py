"""One member of a group of TensorFlow processes without any job: prints, as JSON, the loss of each step that
it made.

``mirrored_member.py RANK STEPS FOLDER ADDRESS…``: the group goes on from the state that the group before
saved in the folder, if there is one, and rank 0 saves its own there at the end. SIGTERM must reach the
program's own handler.
"""

import json
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "dags" / "training"))

import digits  # type: ignore[import-not-found]  # of the example
import train_digits_allreduce  # type: ignore[import-not-found]  # of the example

from edl_workflows.training.checkpoints import tensors
from edl_workflows.training.checkpoints.checkpoint_parts import STATE_FILE
from edl_workflows.training.collective.framework import Wishes
from edl_workflows.training.collective.regrouping import Place
from edl_workflows.training.data.sampler import Dataset, ElasticSampler
from edl_workflows.training.frameworks.tensorflow_collective import MirroredTraining

MOST = 3


def main() -> None:
    """Train, and say how it went."""
    rank, steps, folder, *addresses = sys.argv[1:]
    place = Place(1, int(rank), tuple(addresses))
    data, _ = digits.load()
    sampler = ElasticSampler(Dataset(len(data), 16, num_epochs=0), MOST)
    member = MirroredTraining(train_digits_allreduce.build, threads=1)
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    member.join(place)
    signal.raise_signal(signal.SIGTERM)
    assert told == [signal.SIGTERM]
    state = Path(folder) / STATE_FILE
    if place.rank == 0 and state.exists():
        saved = tensors.load(state)
        sampler.load_state_dict(json.loads(saved.metadata["data"]))
        member.load(saved.tensors)
    sampler.go_to(*member.broadcast([sampler.epoch, sampler.completed]))
    print("training", flush=True)
    losses = []
    for _ in range(int(steps)):
        batches = sampler.mini_batches(place.rank, place.size)
        reduced = member.step(
            [{"images": data.images[i], "labels": data.labels[i]} for i in batches],
            Wishes(drain=1.0, leave=place.rank),
        )
        assert (reduced.wishes.drain, reduced.wishes.leave) == (place.size, sum(range(place.size)))
        losses.append(reduced.loss)
        sampler.advance()
    if place.rank == 0:
        tensors.save(Path(folder), member.state(0, {"data": json.dumps(sampler.state_dict())}))
    member.meet()
    print(json.dumps(losses))


if __name__ == "__main__":
    main()
