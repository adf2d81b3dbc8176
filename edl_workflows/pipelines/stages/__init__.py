"""The steps of a pipeline that concern a job: submit, wait, scale, checkpoint, migrate, suspend, resume,
delete, collect.

A stage is one description (`description.StageSpec`): the fields of its request, and `begin`, which may be
repeated at any time and always leads to the same object. `begin` returns a handle with a goal; the pure
`results.evaluate_goal` tells from the object's state whether the goal is reached, and
`ownership.cancel_object` ends only what the stage created. `catalog` lists all stages. Airflow's operators,
Argo's steps and the CLI are thin drivers made from the descriptions; `driver` waits, blocking or in an event
loop, on the process's shared watch.

A module of a stage has three parts:

- The request, a subclass of `JobRequest`, or of `scale_plans.ChangeRequest` if the stage creates a ScalePlan.
  Each field carries an `Argument`; its bounds are pydantic's. The docstring becomes that of the operator. A
  stage for ElasticJobs only keeps `kind`, and raises `InvalidError` for other kinds.
- ``begin_<stage>``, which returns a `Handle` with a goal of `waiting.goals`. A stage that changes a job has
  the field `if_finished`, and returns `Handle.of_ended` if that is not None. A stage that waits for nothing
  has the goal `ExistsGoal`, and ``waits="never"`` in its description.
- The `StageSpec`.

What must happen only once per run of a task is stored with `identity.owner` and `identity.attempt`, on a job
in annotations of the stage's own, because `OWNER_ANNOTATION` and `ATTEMPT_ANNOTATION` name who created an
object. If the stored owner is the same, there is nothing to do, unless `identity.rerun` is set and the stored
attempt is another one. Attempts alone can't tell runs apart: each retry has another, and the first is "1" in
every run.

The controller and the master read a job's annotations; what the training program must do is a field of a
ScalePlan's spec. Annotations that other packages read are constants in `core.kubernetes.names`.

Nothing here depends on a workflow engine or on one kind of job (see `jobs`).
"""
