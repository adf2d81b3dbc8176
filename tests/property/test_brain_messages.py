"""Messages between a master and the Brain keep their content."""

import math

import hypothesis.strategies as st
from hypothesis import given

from edl_workflows.core.protocol import brain
from edl_workflows.core.scaling.dlrover.brain import messages
from edl_workflows.core.scaling.dlrover.resources import (
    Advice,
    NodeGroupResource,
    NodeSize,
    OptimizerJob,
    OptimizerNode,
    OptimizerRole,
    Range,
    ResourceLimits,
    UserBounds,
)
from edl_workflows.core.scaling.dlrover.samples import JobSample, NodeSample
from edl_workflows.services.brain.service import credible_samples

AMOUNTS = st.floats(0, 1e9)
GPU_TYPES = st.sampled_from([None, "Tesla-V100", "NVIDIA-A100-SXM4-40GB"])
SIZES = st.builds(NodeSize, *(st.none() | AMOUNTS for _ in range(3)), GPU_TYPES)
RANGES = st.none() | st.builds(Range, AMOUNTS, AMOUNTS)
ROLES = st.sampled_from(["ps", "worker", "chief", "evaluator"])
JOBS = st.builds(
    OptimizerJob,
    st.just("mnist"),
    st.dictionaries(
        ROLES,
        st.builds(
            OptimizerRole,
            st.integers(0, 10_000),
            SIZES,
            st.booleans(),
            st.builds(UserBounds, RANGES, RANGES, RANGES),
        ),
    ),
    st.builds(ResourceLimits, AMOUNTS, AMOUNTS, AMOUNTS),
    st.lists(
        st.builds(
            OptimizerNode,
            st.from_regex(r"[a-z0-9]{1,20}", fullmatch=True),
            ROLES,
            st.integers(0, 2**52),
            SIZES,
            st.none() | st.floats(0, 1e11),
            st.booleans(),
        ),
        max_size=5,
    ).map(tuple),
)
PLANS = st.builds(
    Advice,
    st.dictionaries(ROLES, st.builds(NodeGroupResource, st.none() | st.integers(0, 10_000), SIZES)),
    st.dictionaries(st.from_regex(r"[a-z0-9]{1,20}", fullmatch=True), SIZES),
    st.dictionaries(st.text(), st.text()),
    st.lists(st.text()).map(tuple),
    st.booleans(),
)
ANY = st.floats() | st.integers(-(10**6), 10**6).map(float)
SAMPLES = st.builds(
    JobSample,
    ANY,
    st.integers(-(2**70), 2**70),
    ANY,
    st.lists(st.builds(NodeSample, st.sampled_from(["a", "b", "c"]), ROLES, ANY, ANY), max_size=3).map(tuple),
)


@given(JOBS)
def test_a_job_over_the_wire(job: OptimizerJob) -> None:
    """A job that was serialized and parsed is the same job."""
    facts = brain.JobDescription(
        uid="u",
        namespace="n",
        name=job.name,
        roles=messages.roles_of(job),
        limits=messages.limits_of(job),
    )
    again = brain.OptimizeRequest.model_validate_json(
        brain.OptimizeRequest(
            job=facts, stage="job_stage_create", nodes=messages.nodes_of(job)
        ).model_dump_json()
    )
    assert messages.job_of(again.job, again.nodes) == job


@given(PLANS)
def test_advice_over_the_wire(advice: Advice) -> None:
    """Advice that was serialized and parsed is the same advice."""
    said = messages.advice_message(advice).model_dump_json()
    assert messages.advice_of(brain.OptimizeReply.model_validate_json(said)) == advice


@given(st.lists(SAMPLES, max_size=8))
def test_what_is_believed_can_be_stored(samples: list[JobSample]) -> None:
    """Samples that databases and algorithms can handle are kept; the others are dropped with a reason."""
    kept, problems = credible_samples(samples, 1_000.0)
    assert all(0 <= s.time <= 1_600 and 0 <= s.step < 2**63 and 0 <= s.speed < math.inf for s in kept)
    assert all(0 <= n.cpu < math.inf and 0 <= n.memory < math.inf for s in kept for n in s.nodes)
    assert len({s.time for s in kept}) == len(kept)
    assert bool(problems) or len(kept) == len({s.time for s in samples})
    again, _ = credible_samples([messages.sample_of(messages.sample_message(s)) for s in kept], 1_000.0)
    assert list(again) == list(kept)
