"""How fast a job trains its records, as its master measures it from what nodes acknowledge."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edl_workflows.core.protocol.datasets import AckRequest, DatasetParams, LeaseRequest
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.settings import JobSettings
from edl_workflows.services.master.state.statistics import SETTLED, WINDOW, Statistics

SECONDS = st.lists(st.integers(0, 500), min_size=1, max_size=80)
"""Records that each second of training adds."""


def _train(statistics: Statistics, gains: list[int], records: int = 0, now: float = 1_000.0) -> float:
    """Takes the position of each second; returns the time of the last."""
    statistics.sample_records(records, now)
    for second, done in enumerate(itertools.accumulate(gains, initial=records)):
        statistics.sample_records(done, now + second)
    return now + len(gains)


def test_the_start_up_of_a_job_is_not_training_time() -> None:
    """A program that imports its libraries for 40 seconds and then trains 100 records a second trains at that
    speed from the first seconds on."""
    for seconds in (4, 5, 30):
        statistics = Statistics()
        _train(statistics, [0] * 40 + [100] * seconds)
        assert statistics.records_per_second == 100.0


def test_records_that_come_in_shards_are_not_faster_than_they_are() -> None:
    """A shard that was trained for 20 seconds is acknowledged at once. The first one shows no speed, because
    nothing says when it was begun; from the second one on the speed is the true one, between two shards too.
    """
    statistics = Statistics()
    gains = ([0] * 19 + [1000]) * 6
    seen = []
    for second, done in enumerate(itertools.accumulate(gains)):
        statistics.sample_records(done, 1_000.0 + second)
        seen.append(statistics.records_per_second)
    assert set(seen[:39]) == {0.0}
    assert seen[39:] == pytest.approx([50.0] * 81)


def test_shards_that_take_longer_than_the_window() -> None:
    """A shard is acknowledged every 90 seconds: its speed is shown when it is."""
    statistics = Statistics()
    _train(statistics, ([0] * 89 + [900]) * 3)
    assert statistics.records_per_second == pytest.approx(10.0)


@pytest.mark.parametrize("pause", [100, 10_000])
def test_a_job_that_goes_on_after_a_pause_has_its_speed_at_once(pause: int) -> None:
    """A pause of which nothing is left in the window, as of a suspended job, does not slow what follows."""
    statistics = Statistics()
    _train(statistics, [100] * 70 + [0] * pause + [100] * 5)
    assert statistics.records_per_second == 100.0


def test_another_version_is_measured_anew() -> None:
    """The time in which the processes of the next version start is not training time, whether the position
    went back or not."""
    for position in (3_000, 1_000):
        statistics = Statistics()
        end = _train(statistics, [100] * 30)
        statistics.restart()
        _train(statistics, [0] * 20 + [100] * 4, position, end + 1)
        assert statistics.records_per_second == 100.0


def test_a_position_that_went_back_has_no_speed() -> None:
    """The speed is 0 until training gets on again, and then that of the training."""
    statistics = Statistics()
    end = _train(statistics, [100] * 30)
    assert statistics.records_per_second == 100.0
    statistics.sample_records(500, end + 1)
    assert statistics.records_per_second == 0.0
    _train(statistics, [0, 0, 50, 50, 50, 50], 500, end + 2)
    assert statistics.records_per_second == 50.0


@given(gains=SECONDS)
def test_a_stall_ends_in_a_speed_of_nought(gains: list[int]) -> None:
    """While nothing is acknowledged the speed only falls, and after a window without progress it is 0."""
    statistics = Statistics()
    end = _train(statistics, gains)
    before = statistics.records_per_second
    for second in range(int(WINDOW) + 1):
        statistics.sample_records(sum(gains), end + second)
        assert 0.0 <= statistics.records_per_second <= before + 1e-9
        before = statistics.records_per_second
    assert before == 0.0


@given(start=st.integers(0, 200), gains=SECONDS)
def test_the_speed_does_not_depend_on_what_was_before_the_first_record(start: int, gains: list[int]) -> None:
    """However long a job took to start, its speed is the same, and not above that of its best second."""
    late, early = Statistics(), Statistics()
    _train(late, [0] * start + gains)
    _train(early, gains)
    assert late.records_per_second == pytest.approx(early.records_per_second)
    assert early.records_per_second <= max(gains) * 1.001


BATCH = 64
"""Records of a step."""


@dataclass
class SteadyJob:
    """A worker that makes as many steps a second, and acknowledges each shard when it has trained it. The
    master looks then, and each second.

    Attributes:
        speed: steps per second.
        shard: steps per shard.
        begun: Unix seconds of the first step.
    """

    speed: float
    shard: int
    begun: float = 1_000.3
    statistics: Statistics = field(default_factory=Statistics)
    records: int = 0

    def train(self, shards: int) -> Iterator[tuple[float, int]]:
        """Yields (seconds, acknowledged shards) at each look of the master."""
        seconds = self.shard / self.speed
        ends = [self.begun + seconds * number for number in range(1, shards + 1)]
        looks = itertools.takewhile(lambda at: at < ends[-1], itertools.count(self.begun - 0.3))
        for at in sorted({*ends, *looks}):
            done = sum(end <= at for end in ends)
            self.records = done * self.shard * BATCH
            self.statistics.sample_records(self.records, at)
            yield at, done


@given(speed=st.floats(1.0, 200.0), shard=st.integers(1, 400), shards=st.integers(2, 150))
@example(speed=41.0, shard=20, shards=150)
@example(speed=41.0, shard=100, shards=60)
@example(speed=41.0, shard=100, shards=2)
@example(speed=2.0, shard=100, shards=10)
def test_steady_training_has_its_speed_at_any_moment(speed: float, shard: int, shards: int) -> None:
    """From the second shard on, and `SETTLED` after the first, the records fit the steps, whenever somebody
    looks; before, they have no speed."""
    job = SteadyJob(speed, shard)
    if shard / speed >= WINDOW - 1:
        return
    for _, done in job.train(shards):
        shown = job.statistics.records_per_second
        if (done - 1) * shard / speed > SETTLED:
            assert shown == pytest.approx(speed * BATCH, rel=0.1)
        else:
            assert shown in (0.0, pytest.approx(speed * BATCH, rel=0.1))


@given(shard=st.integers(1, 40), sending=st.lists(st.floats(0.01, 0.2), min_size=100, max_size=100))
def test_acknowledgements_that_are_collected_fit_too(shard: int, sending: list[float]) -> None:
    """An agent collects acknowledgements for 0.2 seconds, and sends the next ones when the former are
    answered. The records never differ from the steps by a factor."""
    statistics, seconds, now = Statistics(), shard / 41.0, 1_000.0
    statistics.sample_records(0, now)
    shards = 0
    for sent in sending:
        now = max(now, 1_000.0 + (shards + 1) * seconds) + 0.2
        shards = int((now - 1_000.0) / seconds)
        now += sent
        statistics.sample_records(shards * shard * BATCH, now)
        shown = statistics.records_per_second
        assert shown == 0.0 or 0.7 < shown / (41.0 * BATCH) < 1.3
    assert shown == pytest.approx(41.0 * BATCH, rel=0.05)


@pytest.mark.parametrize("shard", [8, 20, 100, 600])
def test_a_stall_is_seen_before_the_window_ends(shard: int) -> None:
    """The speed stays as long as a shard may take, falls then, and is 0 a window after the last shard."""
    job = SteadyJob(40.0, shard)
    last = max(at for at, _ in job.train(12))
    seconds = shard / job.speed
    seen = []
    for second in range(1, int(WINDOW) + 1):
        job.statistics.sample_records(job.records, last + second)
        seen.append(job.statistics.records_per_second)
    assert seen == sorted(seen, reverse=True)
    assert all(speed == pytest.approx(40.0 * BATCH) for speed in seen[: int(seconds)])
    assert seen[-1] == pytest.approx(0.0, abs=1e-9)
    assert seen[(int(seconds) + int(WINDOW)) // 2] < 0.6 * 40.0 * BATCH


def test_many_acknowledgements_a_second() -> None:
    """A hundred workers with short shards: the window stays whole, and the memory small."""
    statistics = Statistics()
    for number in range(100 * 80):
        statistics.sample_records(10 * number, 1_000.0 + number / 100)
    assert statistics.records_per_second == pytest.approx(1_000.0, rel=0.01)
    assert len(statistics.records.rises) <= 128
    assert statistics.records.rises[-1][0] - statistics.records.rises[0][0] > WINDOW - 1


def test_the_end_of_the_data_keeps_the_speed() -> None:
    """While the last checkpoint is saved and the processes end, no record is missing: the speed is that of
    the training, as the steps' is."""
    statistics = Statistics()
    end = _train(statistics, [100] * 10)
    for second in range(40):
        statistics.sample_records(1_000, end + second, over=True)
        assert statistics.records_per_second == 100.0


class DataJob:
    """The state of a job that trains shards of 512 records in 0.2 seconds.

    Args:
        data: number of shards.
    """

    def __init__(self, data: int = 400) -> None:
        self.state = JobState(JobSettings("job", "default", parse_nodes("worker=1")))
        self.now = 1_000.0
        self.params = DatasetParams(name="churn", size=512 * data, shard_size=512)

    def register(self) -> None:
        """The worker registers its data."""
        self.state.shards.register(self.params)

    def train(self, seconds: int) -> list[float]:
        """The speeds that the job shows each second."""
        state, worker = self.state, NodeRef(type="worker", id=0)
        seen = []
        for moment in range(1, 5 * seconds + 1):
            at = self.now + moment * 0.2
            lease = state.shards.lease("churn", LeaseRequest(node=worker, max_shards=1), at)
            state.shards.acknowledge("churn", AckRequest(node=worker, done=lease.shards), at)
            state.measure_records(at)
            seen.append(state.volatile.statistics.records_per_second)
        self.now += seconds
        return seen[4::5]

    def wait(self, seconds: int) -> list[float]:
        """The same while nothing is trained."""
        seen = []
        for _ in range(seconds):
            self.now += 1.0
            self.state.measure_records(self.now)
            seen.append(self.state.volatile.statistics.records_per_second)
        return seen


@pytest.mark.parametrize("first", ["data", "checkpoint"])
def test_a_restored_position_is_no_training(first: str) -> None:
    """A job goes on from the checkpoint of an earlier one. The records before it were not trained here, and
    the time from the restored position to the first shard is not training time."""
    earlier = DataJob()
    earlier.register()
    earlier.train(10)
    position = earlier.state.shards.position()
    job = DataJob()
    job.wait(3)
    if first == "data":
        job.register()
        job.wait(2)
    job.state.shards.resume("/c/1", position)
    if first == "checkpoint":
        job.wait(2)
        job.register()
    assert set(job.wait(4)) == {0.0}
    assert job.train(6)[3:] == pytest.approx([512 * 5] * 3)


def test_a_short_job_ends_with_the_speed_of_its_training() -> None:
    """Twenty shards in four seconds; the job needs ten seconds to end."""
    job = DataJob(data=20)
    job.register()
    job.wait(2)
    job.train(5)
    assert job.wait(10) == pytest.approx([512 * 5] * 10)
