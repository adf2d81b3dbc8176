"""A parameter server of the TrainingJob example: holds its share of the parameters, and
applies gradients as they come.

It saves its share now and then and when it is told to end; the server that takes its
place goes on from there.
"""

import argparse
import io
import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from trainingjob_http import serve

Arrays = dict[str, NDArray[np.float32]]

SHAPES = {
    "digits/hidden/weights": (64, 64),
    "digits/hidden/biases": (64,),
    "digits/logits/weights": (64, 10),
    "digits/logits/biases": (10,),
}
"""The network of `digits`, written here so that a server need not load TensorFlow."""
LEARNING_RATE = 0.1


def pack(arrays: Arrays) -> bytes:
    """Arrays as bytes."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def unpack(content: bytes) -> Arrays:
    """Arrays from the bytes that `pack` made."""
    with np.load(io.BytesIO(content)) as file:
        return {name: file[name] for name in file.files}


class Parameters:
    """A share of the parameters.

    Args:
        file: the file in which they are saved.
        names: the names of the parameters.
        save_every: updates between saves.
    """

    def __init__(self, file: Path, names: list[str], save_every: int) -> None:
        self._file = file
        self._save_every = save_every
        self._lock = threading.Lock()
        self._updates = 0
        self._values = unpack(file.read_bytes()) if file.exists() else _initial(names)

    def read(self, _body: bytes) -> bytes:
        """The current parameters."""
        with self._lock:
            return pack(self._values)

    def update(self, body: bytes) -> bytes:
        """Apply gradients."""
        with self._lock:
            for name, gradient in unpack(body).items():
                self._values[name] -= np.float32(LEARNING_RATE) * gradient
            self._updates += 1
            if self._updates % self._save_every == 0:
                self._save()
        return b""

    def save(self) -> None:
        """Write the parameters to the file atomically."""
        with self._lock:
            self._save()

    def _save(self) -> None:
        beside = self._file.with_suffix(".new")
        beside.write_bytes(pack(self._values))
        beside.replace(self._file)


def _initial(names: list[str]) -> Arrays:
    random = np.random.default_rng(0)
    drawn = {n: (random.standard_normal(s) * 0.1).astype(np.float32) for n, s in SHAPES.items()}
    return {
        name: drawn[name] if name.endswith("weights") else np.zeros_like(drawn[name])
        for name in names
    }


def main() -> None:
    """Serve until the job ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of the saved parameters")
    parser.add_argument("--save-every", type=int, default=20, help="updates (default %(default)s)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    index, servers = int(os.environ["PADDLE_PSERVER_ID"]), int(os.environ["PSERVERS"])
    names = list(SHAPES)[index::servers]
    parameters = Parameters(options.folder / f"pserver-{index}.npz", names, options.save_every)
    server = serve({"/read": parameters.read, "/update": parameters.update})
    # Not in the handler itself: `shutdown` waits for the loop that the handler
    # interrupts.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever()
    parameters.save()
    sys.exit(0)


if __name__ == "__main__":
    main()
