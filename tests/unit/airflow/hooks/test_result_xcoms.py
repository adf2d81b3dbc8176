"""Results of training functions in Airflow's XComs."""

from importlib import import_module, util
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.protocol.function_result import read_result, render_result

serde = import_module(
    "airflow.sdk.serde" if util.find_spec("airflow.sdk.serde") else "airflow.serialization.serde"
)
"""Airflow's serialization of XComs: in the task SDK since 3.2."""
SPECIAL = sorted(
    {value for name, value in vars(serde).items() if name.isupper() and str(value).startswith("__")}
)
"""Keys with which Airflow's serialization names classes."""
KEYS = st.sampled_from([*SPECIAL, "loss", "dict"])
CLASSES = st.sampled_from(["airflow.sdk.definitions.asset.Asset", "airflow.sdk.io.path.ObjectStoragePath"])
LEAVES = st.none() | st.integers(0, 9) | CLASSES
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)


@given(VALUES)
def test_a_result_makes_no_objects_in_other_tasks(value: Any) -> None:
    """A result is plain data in the tasks that read it, or it is rejected: the program can't choose a class
    that Airflow's workers instantiate."""
    try:
        result = read_result(render_result(value))
    except InvalidError:
        return

    assert serde.deserialize(serde.serialize({"result": result})) == {"result": value}


NUMBERS = st.integers() | st.integers(2**62, 2**65) | st.integers(-(2**65), -(2**62)) | st.floats()


@given(st.recursive(NUMBERS, lambda inner: st.lists(inner) | st.dictionaries(NUMBERS, inner), max_leaves=6))
def test_airflow_can_send_a_result(value: Any) -> None:
    """A result fits what Airflow's tasks and triggers send to their supervisors, or the program's report is
    refused: a task does not fail after a successful training."""
    try:
        result = read_result(render_result(value))
    except InvalidError:
        return

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(result)) == result


def test_airflow_has_such_keys() -> None:
    """Airflow's serialization has the special keys that the test above relies on."""
    assert {"__classname__", "__type"} <= set(SPECIAL)
