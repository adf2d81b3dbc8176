"""The demo's data and model: scikit-learn's bundled handwritten digits, and a small
perceptron for them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from sklearn.datasets import load_digits

PIXELS = 64
CLASSES = 10
HIDDEN = 64
TEST_SHARE = 5
"""Held-out images: every fifth in a fixed shuffled order."""

tf1 = tf.compat.v1
Floats = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Digits:
    """Images with 64 grey values in 0..1 and their labels."""

    images: Floats
    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)


def load() -> tuple[Digits, Digits]:
    """The training part and the held-out part."""
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    images = (bunch.data[order] / 16.0).astype(np.float32)
    labels = bunch.target[order].astype(np.int64)
    held_out = np.arange(len(order)) % TEST_SHARE == 0
    return Digits(images[~held_out], labels[~held_out]), Digits(images[held_out], labels[held_out])


@dataclass(frozen=True)
class Network:
    """Tensors of the network."""

    images: Any
    labels: Any
    loss: Any


def network() -> Network:
    """The network in TensorFlow's default graph."""
    images = tf1.placeholder(tf.float32, [None, PIXELS], name="images")
    labels = tf1.placeholder(tf.int64, [None], name="labels")
    with tf1.variable_scope("digits"):
        hidden = tf.nn.relu(_dense(images, "hidden", PIXELS, HIDDEN))
        logits = _dense(hidden, "logits", HIDDEN, CLASSES)
    return Network(images, labels, tf1.losses.sparse_softmax_cross_entropy(labels, logits))


def predict(variables: dict[str, Floats], images: Floats) -> Labels:
    """The same network in NumPy, from a checkpoint's variables."""
    hidden = np.maximum(
        images @ variables["digits/hidden/weights"] + variables["digits/hidden/biases"],
        np.float32(0),
    )
    logits = hidden @ variables["digits/logits/weights"] + variables["digits/logits/biases"]
    return np.asarray(logits.argmax(axis=1), dtype=np.int64)


def _dense(inputs: Any, name: str, size_in: int, size_out: int) -> Any:
    with tf1.variable_scope(name):
        weights = tf1.get_variable(
            "weights", [size_in, size_out], initializer=tf1.glorot_uniform_initializer(seed=0)
        )
        biases = tf1.get_variable("biases", [size_out], initializer=tf1.zeros_initializer())
    return tf.matmul(inputs, tf.convert_to_tensor(weights)) + tf.convert_to_tensor(biases)
