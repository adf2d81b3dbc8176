"""Laws of the store, over any sequence of writes, compactions and restarts."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from edl_workflows.local.apiserver.errors import ApiError
from edl_workflows.local.apiserver.storage.revisions import StoreKey
from edl_workflows.local.apiserver.storage.store import ObjectStore

NAMES = st.sampled_from(["a", "b", "c"])
State = dict[str, int]


class StoreMachine(RuleBasedStateMachine):
    """The store against a dict and the list of its past states."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = self._open()
        self.model: State = {}
        self.past: dict[int, State] = {self.store.revision: {}}

    def _open(self) -> ObjectStore:
        return ObjectStore(self.folder / "s.db", history=6)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    def _write(self, name: str, value: int | None) -> None:
        key = StoreKey("things", "", name)
        obj = {"metadata": {"name": name}, "value": value}
        if value is None:
            self.store.delete(key)
            del self.model[name]
        elif name in self.model:
            self.store.update(key, obj)
            self.model[name] = value
        else:
            self.store.create(key, obj)
            self.model[name] = value
        self.past[self.store.revision] = dict(self.model)

    @rule(name=NAMES, value=st.integers(0, 3))
    def put(self, name: str, value: int) -> None:
        self._write(name, value)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if name in self.model:
            self._write(name, None)

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = self._open()

    def _state(self, at: int | None) -> State:
        return {one.key.name: one.decode()["value"] for one in self.store.list_objects("things", at=at)}

    @invariant()
    def present_is_the_model(self) -> None:
        assert self._state(None) == self.model

    @invariant()
    def past_is_exact_or_expired(self) -> None:
        """A list at an old version is the state of then, and a watch from it leads to the present."""
        for version, state in list(self.past.items())[-12:]:
            if version < self.store._floor.get("things", 0):
                with pytest.raises(ApiError, match="too old"):
                    self._state(version)
                continue
            then = self._state(version)
            assert then == state
            with self.store.watch("things", since=version) as watch:
                for event in watch._pending:
                    obj = event.decode()
                    if event.type == "DELETED":
                        del then[obj["metadata"]["name"]]
                    else:
                        then[obj["metadata"]["name"]] = obj["value"]
            assert then == self.model

    @invariant()
    def recent_history_is_kept(self) -> None:
        """At least the last six changes can be watched."""
        recent = list(self.past)[-7:]
        self.store.watch("things", since=recent[0]).close()


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
