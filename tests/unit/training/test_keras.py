"""Keras models in jobs: the adapter with a group of one, the export, and the callback for other programs."""

import csv
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edl_workflows.core.exceptions import CheckpointError, InvalidError
from edl_workflows.training.frameworks.saved_model import open_model
from edl_workflows.training.job import Job
from tests.unit.training.fake_master import FakeMaster, world
from tests.unit.training.test_tensorflow_collective import Alone

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tensorflow,
    pytest.mark.timeout(600),  # the import alone takes long
    pytest.mark.filterwarnings("ignore:__array__ implementation"),  # of Keras, when it saves
]
TRAINING = Path(__file__).parents[3] / "dags" / "training"


@pytest.fixture(scope="module")
def adapter() -> Any:
    """The adapter's module, where TensorFlow is installed."""
    pytest.importorskip("tensorflow")
    from edl_workflows.training.frameworks import keras

    return keras


@pytest.fixture
def job(
    adapter: Any, master: FakeMaster, connected: Callable[[int], Job], monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], Job]:
    """A process of a job with one worker, whose group needs no other process; by its version."""
    from edl_workflows.training.frameworks import tensorflow_collective

    monkeypatch.setattr(tensorflow_collective, "AllReduceGroup", Alone)

    def start(version: int) -> Job:
        master.say(active=world(version, (0,)), next=None, drain=False, save="")
        return connected(version)

    return start


def values() -> tuple[Any, Any]:
    """Inputs and labels that can be learned."""
    random = np.random.default_rng(0)
    x = random.random((64, 4), np.float32)
    return x, (x.sum(axis=1) > 2).astype(np.int64)


def build(adapter: Any, *, statistics: bool = False) -> Any:
    """A model with a loss that a layer adds, and possibly statistics of batches."""
    keras = adapter.keras
    keras.utils.set_random_seed(3)
    layers = [
        keras.Input((4,)),
        keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2", name="first"),
        *([keras.layers.BatchNormalization(name="second")] if statistics else []),
        keras.layers.Dense(1, activation="sigmoid", name="third"),
    ]
    model = keras.Sequential(layers, name="model")
    return adapter.KerasModel(model, "binary_crossentropy", keras.optimizers.SGD(0.1), ["accuracy"])


def test_fit_is_that_of_keras(adapter: Any, job: Any, tmp_path: Path) -> None:
    """Weights and metrics after two epochs are those of ``compile`` and ``fit``, although each step
    accumulates four mini-batches. The checkpoint is exported in Keras's format."""
    x, y = values()
    expected = build(adapter)
    expected.model.compile(
        expected.optimizer, expected.loss, metrics=list(expected.metrics), jit_compile=False
    )
    curve = expected.model.fit(x, y, 16, 2, shuffle=False, validation_data=(x, y), verbose=0).history

    history = adapter.fit(
        job(1),
        lambda: build(adapter),
        x,
        y,
        adapter.TrainingOptions(tmp_path, threads=0),
        batch_size=4,  # of 4 mini-batches a step
        epochs=2,
        validation_data=(x, y),
        shuffle=False,
        global_batch=16,
    )
    assert history.keys() == {"loss", "val_loss", "val_accuracy"}
    for name, value in history.items():
        if name != "loss":  # Keras leaves out what layers add, in some versions
            assert value == pytest.approx(curve[name], abs=1e-4)

    file = tmp_path / "model.keras"
    adapter.export_keras(tmp_path, lambda: build(adapter), file)
    predicted = adapter.keras.models.load_model(file).predict(x, verbose=0)
    assert predicted == pytest.approx(expected.model.predict(x, verbose=0), abs=1e-4)
    assert "model/first/kernel" in open_model(tmp_path).tensors
    with pytest.raises(CheckpointError, match="another model"):
        adapter.export_keras(tmp_path, lambda: adapter.KerasModel(other_model(adapter), "mse"), file)


def other_model(adapter: Any) -> Any:
    """A model with a variable of another name."""
    keras = adapter.keras
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="other")], name="model")


def test_callbacks_and_early_stop(adapter: Any, job: Any, tmp_path: Path) -> None:
    """Early stopping ends the training, also for a process that starts again; the CSV file has a row for each
    epoch; the best checkpoint is kept."""
    keras = adapter.keras
    x, y = values()
    rows = []
    for version in (1, 2):
        adapter.fit(
            job(version),
            lambda: adapter.KerasModel(
                build(adapter, statistics=True).model, "mse", keras.optimizers.SGD(0.0)
            ),
            x,
            y,
            adapter.TrainingOptions(tmp_path),
            batch_size=16,
            epochs=9,
            monitor="loss",
            callbacks=[
                keras.callbacks.EarlyStopping("loss", patience=1, min_delta=1.0),
                keras.callbacks.CSVLogger(str(tmp_path / "metrics.csv"), append=True),
            ],
        )
        with (tmp_path / "metrics.csv").open() as lines:
            rows.append([row["epoch"] for row in csv.DictReader(lines)])
    assert rows == [["0", "1"], ["0", "1"]]
    assert open_model(tmp_path / "best").checkpoint.step > 0


def test_the_best_model_survives_a_restart(adapter: Any, job: Any, tmp_path: Path) -> None:
    """A process that starts again does not overwrite the file of the best model with a worse one; a callback
    whose best value would be lost is refused."""
    keras = adapter.keras
    x, y = values()
    file, options = tmp_path / "best.weights.h5", adapter.TrainingOptions(tmp_path / "checkpoints")

    def fit(version: int, epochs: int, monitor: str = "", **arguments: Any) -> None:
        # The labels of the validation are wrong: the more the model learns, the greater is its loss.
        saving = keras.callbacks.ModelCheckpoint(
            str(file), save_best_only=True, save_weights_only=True, **arguments
        )
        connected = job(version)
        adapter.fit(
            connected, lambda: build(adapter), x, y, options,
            batch_size=16, epochs=epochs, validation_data=(x, 1 - y), monitor=monitor, callbacks=[saving],
        )  # fmt: skip

    fit(1, 2)
    best = file.read_bytes()
    fit(2, 3)
    assert file.read_bytes() == best
    for arguments in ({"monitor": "val_accuracy", "mode": "max"}, {"mode": "max"}):
        with pytest.raises(InvalidError, match=r"smaller is better.*overwrite its best"):
            fit(3, 3, **arguments)


def test_the_best_model_of_a_metric_whose_direction_keras_knows(
    adapter: Any, job: Any, tmp_path: Path
) -> None:
    """With mode "auto" the metric decides what is better. If `fit` takes it the other way round, the callback
    is refused before it overwrites its best model with a worse one."""
    keras = adapter.keras
    x, y = values()
    file = tmp_path / "best.weights.h5"

    def fit(version: int, *, maximize: bool) -> Any:
        saving = keras.callbacks.ModelCheckpoint(
            str(file), "val_accuracy", save_best_only=True, save_weights_only=True
        )
        adapter.fit(
            job(version), lambda: build(adapter), x, y, adapter.TrainingOptions(tmp_path / str(maximize)),
            batch_size=16, epochs=2, validation_data=(x, 1 - y), monitor="val_accuracy", maximize=maximize,
            callbacks=[saving],
        )  # fmt: skip
        return saving

    with pytest.raises(InvalidError, match=r"mode auto.*smaller is better"):
        fit(1, maximize=False)
    assert not file.exists()
    assert fit(2, maximize=True).best > 0.5


def test_the_stop_of_rank_0_counts(
    adapter: Any, job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback that stops this member alone, such as by its own clock, does not: the others would wait for
    it for ever."""

    class Stop(adapter.keras.callbacks.Callback):  # type: ignore[misc]
        """Stops after the first epoch."""

        def on_epoch_end(self, _epoch: int, _logs: Any = None) -> None:
            self.model.stop_training = True

    x, y = values()
    for folder, of_rank_0, epochs in (("own", lambda _, numbers: numbers, 1), ("other", _never, 3)):
        monkeypatch.setattr(adapter.World, "_of_rank_0", of_rank_0)
        history = adapter.fit(
            job(1 if folder == "own" else 2),
            lambda: build(adapter),
            x,
            y,
            adapter.TrainingOptions(tmp_path / folder),
            epochs=3,
            callbacks=[Stop()],
        )
        assert len(history["loss"]) == epochs


def _never(_run: Any, numbers: list[Any]) -> list[Any]:
    """What another rank 0 has: the same metrics, and no wish to stop."""
    return [0.0 if number is True else number for number in numbers]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda keras: keras.keras.callbacks.ReduceLROnPlateau(), "ReduceLROnPlateau does not work"),
        (
            lambda keras: keras.keras.callbacks.EarlyStopping("val_loss", restore_best_weights=True),
            "restore_best_weights.* folder best",
        ),
        (lambda keras: keras.KerasProgress(), "KerasProgress does not work in an elastic job: .* reports"),
    ],
)
@pytest.mark.parametrize("collective", [True, False])
def test_what_is_refused(
    adapter: Any, job: Any, tmp_path: Path, make: Any, reason: str, collective: bool
) -> None:
    """Callbacks whose state the job does not keep, and those that would report a second time, with all-reduce
    and with parameter servers."""
    x, y = values()
    process: Any = job(1) if collective else SimpleNamespace(cluster=SimpleNamespace(collective=False))
    with pytest.raises(InvalidError, match=reason):
        adapter.fit(
            process,
            lambda: build(adapter),
            x,
            y,
            adapter.TrainingOptions(tmp_path),
            callbacks=[make(adapter)],
        )


def test_the_example_program(adapter: Any, job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program learns the digits, and exports the model of its best epoch."""
    monkeypatch.syspath_prepend(str(TRAINING))
    train_keras = import_module("train_keras")
    monkeypatch.setattr(train_keras, "connect", lambda: job(1))
    monkeypatch.setattr(
        train_keras, "TrainingOptions", lambda folder, **_more: adapter.TrainingOptions(folder)
    )
    monkeypatch.setattr(sys, "argv", ["train", f"--output={tmp_path}", "--epochs=6", "--batch-size=32"])
    train_keras.main()
    _, held_out = train_keras.load()
    model = adapter.keras.models.load_model(tmp_path / "digits.keras")
    assert (model.predict(held_out.images, verbose=0).argmax(1) == held_out.labels).mean() > 0.85


def test_a_program_that_stays_as_it_is(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One callback reports steps, loss, epochs and metrics of ``model.fit``."""
    from edl_workflows.training import KerasProgress
    from edl_workflows.training.frameworks import keras_model

    reports: list[tuple[int, Any, dict[str, float]]] = []
    monkeypatch.setattr(
        keras_model, "progress", lambda step, loss, **metrics: reports.append((step, loss, metrics))
    )
    x, y = values()
    parts = build(adapter)
    parts.model.compile("sgd", parts.loss, metrics=["accuracy"], jit_compile=False)
    parts.model.fit(x, y, 32, 2, validation_data=(x, y), verbose=0, callbacks=[KerasProgress()])
    assert [step for step, *_ in reports] == [1, 2, 2, 3, 4, 4]
    assert all(loss > 0 for _, loss, _ in reports)
    assert reports[-1][2].keys() == {"epoch", "accuracy", "val_loss", "val_accuracy"}


class FakeTraining:
    """A worker's training with parameter servers, in this process."""

    def __init__(self, servers: Any, graph: Any, epochs: list[int]) -> None:
        self.graph, self.epochs = graph, epochs
        self.session = servers.tf1.Session(graph=graph)
        self.job = self
        self.reports: list[dict[str, float]] = []
        self.saved: list[Any] = []
        self._step = 0
        self.model: Any = None

    def batches(self, _name: str, **params: Any) -> Any:
        """Batches of the epochs."""
        for epoch in self.epochs:
            for start in range(0, params["size"], params["batch_size"]):
                yield SimpleNamespace(epoch=epoch, indices=range(start, start + params["batch_size"]))

    def step(self, **inputs: Any) -> tuple[int, float]:
        """Make a step."""
        self._step += 1
        feed = {self.model.inputs[name]: value for name, value in inputs.items()}
        return self._step, float(self.session.run([self.model.train, self.model.loss], feed)[1])

    def report(self, _step: int, metrics: dict[str, float]) -> None:
        """Note them."""
        self.reports.append(metrics)

    def save(self, store: Any, position: dict[str, float]) -> None:
        """Publish something."""
        self.saved.append(position["value"])
        store.publish(self._step, lambda folder: (folder / "model").write_text("1"), position=position)


def test_the_graph_with_parameter_servers(adapter: Any, tmp_path: Path) -> None:
    """The same model trains in a graph: it learns, statistics of batches are updated, and the metrics are
    those of Keras. At the end of an epoch the chief reports, calls callbacks and keeps the best model."""
    servers: Any = import_module("edl_workflows.training.frameworks.tf1.keras_servers")
    keras, (x, y) = adapter.keras, values()
    csv_file = keras.callbacks.CSVLogger(str(tmp_path / "metrics.csv"))
    graph = servers.tf.Graph()
    with graph.as_default():
        servers.tf1.train.get_or_create_global_step()
        parts = build(adapter, statistics=True)
        served = servers.ServedModel(parts, servers.take_records(x, y, [0]))
        run: Any = FakeTraining(servers, graph, [1, 2, 3])
        run.model = served.in_graph
        run.session.run(servers.tf1.global_variables_initializer())
    options = adapter.TrainingOptions(tmp_path)
    ends = servers.ChiefEpochs(run, options, [csv_file], "", maximize=False)
    dataset = {"size": 64, "batch_size": 16}
    seen = []
    for epoch, step, loss in servers._train_epochs(run, (x, y), dataset):
        ends.end(epoch, step, {"loss": loss, **served.evaluate(run.session, x, y, 24)}, run)
        seen.append((epoch, step))
    ends.finish()
    assert seen == [(1, 4), (2, 8), (3, 12)]
    assert ends.history.keys() == {"loss", "val_loss", "val_accuracy"}
    assert ends.history["loss"][-1] < ends.history["loss"][0]
    assert run.saved == list(dict.fromkeys(np.minimum.accumulate(ends.history["val_loss"])))
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 4
    assert servers.ChiefEpochs(run, options, [], "", maximize=False)._ends.best == run.saved[-1]

    trained = run.session.run([variable.value for variable in parts.model.variables])
    alone = build(adapter, statistics=True)
    alone.model.set_weights(trained)
    alone.model.compile(loss=alone.loss, metrics=["accuracy"], jit_compile=False)
    expected = alone.model.evaluate(x, y, verbose=0, return_dict=True)
    assert ends.history["val_loss"][-1] == pytest.approx(expected["loss"], abs=1e-4)
    assert ends.history["val_accuracy"][-1] == pytest.approx(expected["accuracy"], abs=1e-6)
    assert abs(alone.model.get_layer("second").moving_mean.numpy()).sum() > 0


def test_an_epoch_with_servers_ends_once(adapter: Any) -> None:
    """A lost worker's shard of an earlier epoch, which the master hands out before those of the next, neither
    reopens its epoch nor ends it again."""
    servers: Any = import_module("edl_workflows.training.frameworks.tf1.keras_servers")
    batches = [SimpleNamespace(epoch=epoch, indices=[0]) for epoch in (1, 1, 2, 2, 1, 2, 2, 3)]
    steps = iter(range(1, 9))
    run = SimpleNamespace(
        job=SimpleNamespace(batches=lambda _name, **_params: batches),
        step=lambda **_inputs: (next(steps), 0.5),
    )
    ended = [epoch[:2] for epoch in servers._train_epochs(run, (np.zeros(1), np.zeros(1)), {})]
    assert ended == [(1, 2), (2, 7), (3, 8)]


def test_a_late_shard_of_an_ended_epoch(adapter: Any) -> None:
    """The master leases the shard of a lost worker first, even when its epoch has ended for the chief: no
    epoch ends twice."""
    servers: Any = import_module("edl_workflows.training.frameworks.tf1.keras_servers")
    steps = iter(range(1, 9))
    batches = [SimpleNamespace(epoch=epoch, indices=[0]) for epoch in (1, 1, 2, 1, 1, 2, 3)]
    run: Any = SimpleNamespace(
        job=SimpleNamespace(batches=lambda _name, **_params: batches),
        step=lambda **_records: (next(steps), 0.0),
    )

    ends = [(epoch, step) for epoch, step, _ in servers._train_epochs(run, values(), {})]

    assert ends == [(1, 2), (2, 6), (3, 7)]


def test_what_parameter_servers_refuse(adapter: Any, tmp_path: Path) -> None:
    """Early stopping, and optimizers and metrics without a counterpart."""
    servers: Any = import_module("edl_workflows.training.frameworks.tf1.keras_servers")
    keras = adapter.keras
    with pytest.raises(InvalidError, match="EarlyStopping"):
        servers.ChiefEpochs(
            None, adapter.TrainingOptions(tmp_path), [keras.callbacks.EarlyStopping()], "", maximize=False
        )
    with pytest.raises(InvalidError, match="Lion: with parameter servers"):
        servers._make_optimizer("lion")
    with pytest.raises(InvalidError, match="metric nosuch"):
        list(servers._metric_functions(["nosuch"], None, None))
