"""Labels, annotations, environment names and ports, each once. Upstream's spelling where users know it."""

GROUP = "elastic.iml.github.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

APP_LABEL = "app"
APP_VALUE = "dlrover"
"""Upstream puts ``app: dlrover`` on an ElasticJob's pods; dashboards select by it. A template's own ``app``
wins.
"""

JOB_LABEL = "elasticjob.dlrover/name"
LEGACY_JOB_LABEL = "elasticjob-name"
"""The seed document and older samples use this label for a ScalePlan's job. Both labels are read; only the
newer one is written.
"""
REPLICA_TYPE_LABEL = "elasticjob.dlrover/replica-type"
REPLICA_INDEX_LABEL = "elasticjob.dlrover/replica-index"
"""The node's id: unique within (job, type) and never reused."""
RANK_INDEX_LABEL = "elasticjob.dlrover/rank-index"
"""The node's rank: its replacement gets the same one."""
RELAUNCH_COUNT_LABEL = "elasticjob.dlrover/relaunch-count"
"""On master pods: how much of the restart budget was used when the pod was made."""
SCALE_TYPE_LABEL = "scale-type"
SCALE_AUTO = "auto"
"""A plan that a job's master writes and the controller carries out: it creates and removes pods."""
SCALE_MANUAL = "manual"
"""A plan that a user, a pipeline or the controller writes, and the job's master carries out step by step."""

ISOLATES_LABEL = f"{GROUP}/isolates"
"""On a NetworkPolicy: the job whose pods it isolates."""

MASTER_TYPE = "dlrover-master"
PS_TYPE = "ps"
WORKER_TYPE = "worker"
CHIEF_TYPE = "chief"
EVALUATOR_TYPE = "evaluator"

PART_OF = {"app.kubernetes.io/part-of": "edl-workflows"}
"""Label of every object of an installation, by which `kubectl get … -l` finds them."""
CONTROLLER = "edl-controller"
"""An installation's controller: its account, its Deployment, and the Lease for its leader election.
"""
CONTROLLER_PORT = 8080
"""The controller's port for probes and Prometheus."""
DI_SERVER = "edl-di-server"
"""An installation's DI server: its account, its Deployment, its Service, and the Secret with its
administrator's token.
"""
DI_SERVER_PORT = 8081
"""As upstream's."""
BRAIN = "edl-brain"
"""An installation's Brain: its account, its Deployment, its Service, its volume, and the Secret with the
tokens' hashes.
"""
BRAIN_PORT = 8082
GPU_TYPE_LABEL = "nvidia.com/gpu.product"
"""On a node: what kind of GPU it has, as NVIDIA's GPU feature discovery writes it."""
OWNER_ANNOTATION = f"{GROUP}/owner"
"""The task and run that created the object. Only its owner adopts, replaces or cancels an object."""
TRACE_ANNOTATION = f"{GROUP}/traceparent"
"""The trace that the object belongs to: `edl_workflows.core.protocol.trace_context`."""
SCENARIO_ANNOTATION = f"{GROUP}/scenario"
"""On a job: its scenario. The Brain and the allocator predict a job from earlier jobs of the same scenario
and namespace. Without the annotation the Brain uses the job's name."""
DATA_ANNOTATION = f"{GROUP}/data"
"""On a job: URIs of the data sets that it reads, separated by spaces or commas, for OpenLineage."""
GONE_ANNOTATION = f"{GROUP}/owner-gone"
"""On an object of a stage: since when no owner is known to wait for it (RFC 3339). Adoption removes the
annotation."""
SUSPENDED_ANNOTATION = f"{GROUP}/owner-suspended"
"""On an object of a stage: the attempt that suspended it instead of deleting it. The attempt that adopts the
object resumes it."""
TAKE_OVER_ANNOTATION = f"{GROUP}/take-over"
"""On a job that another operator ran: with the value ``true`` the controller runs it, and replaces its
pods."""
AWAITED_STEP_PREFIX = f"awaited-step.{GROUP}/"
"""On a job: begins the annotation of each stage that waits for a step; the value is the step
(`edl_workflows.core.jobs.elastic_job.awaited_steps`)."""
ACKNOWLEDGED_ANNOTATION = f"{GROUP}/acknowledged-replicas"
"""On the Lease of a controller's replica: the identities of the other replicas on whose jobs it does not act,
separated by commas."""
STATE_OWNER_ANNOTATION = f"{GROUP}/state-owner"
"""On a job's state ConfigMap and its parts: the master that writes them."""
MASTER_PORT = 50001
NODE_PORTS: dict[str, tuple[int, int]] = {
    PS_TYPE: (2222, 2223),
    CHIEF_TYPE: (3333, 3334),
    WORKER_TYPE: (3333, 3334),
    EVALUATOR_TYPE: (3333, 3334),
}
"""Ports of a node. A process of cluster version v listens on ``ports[v % 2]``, so that a prepared successor
can listen while its predecessor still trains. Upstream uses the first port of each pair."""

AGENT_PORT = 3335
"""The port of a node's agent, from which other nodes copy the newest state of the model."""

ENV_MASTER_ADDR = "DLROVER_MASTER_ADDR"
ENV_JOB_NAME = "ELASTIC_JOB_NAME"
ENV_JOB_UID = "JOB_UID"
ENV_NAMESPACE = "POD_NAMESPACE"
ENV_POD_NAME = "POD_NAME"
ENV_NODE_TYPE = "NODE_TYPE"
ENV_NODE_ID = "NODE_ID"
ENV_NODE_RANK = "NODE_RANK"
ENV_JOB_TOKEN = "EDL_JOB_TOKEN"  # noqa: S105 - the variable's name, not a secret
ENV_DI_SERVER_TOKEN = "EDL_DI_SERVER_TOKEN"  # noqa: S105 - the variable's name, not a secret
"""The administrator's token of the DI server, in that server's environment."""
ENV_NODE_NUM = "NODE_NUM"
"""How many nodes of its type the job wanted when the pod was made; users' scripts read it
(``--nnodes=1:$NODE_NUM``).
"""
ENV_POD_IP = "POD_IP"
ENV_HOST_IP = "HOST_IP"
ENV_BRAIN_ADDR = "DLROVER_BRAIN_SERVICE_ADDR"
ENV_BRAIN_TOKEN = "EDL_BRAIN_TOKEN"  # noqa: S105 - the variable's name, not a secret
"""The tenant's token for the Brain, in the environment of a job's master."""
ENV_BRAIN_TOKEN_FILE = "EDL_BRAIN_TOKEN_FILE"  # noqa: S105 - the variable's name, not a secret
"""A file with that token, read at each call. It takes precedence."""
ENV_BRAIN_CA_FILE = "EDL_BRAIN_CA_FILE"
"""PEM file of the CA certificates for a Brain served over HTTPS; default: the system's."""
ENV_BRAIN_DATABASE_URL = "EDL_BRAIN_DATABASE_URL"
"""The database URL of the Brain service, in its environment because others can see a password on a command
line."""
ENV_STATE_DIR = "EDL_STATE_DIR"
"""In a master: the folder for its state, on a volume."""
ENV_STATE_BRAIN = "EDL_STATE_BRAIN"
"""In a master: the address of the Brain that keeps its state."""
ENV_AUTOSCALE_PERIOD = "EDL_AUTOSCALE_PERIOD"
ENV_CLUSTER_VERSION = "EDL_CLUSTER_VERSION"
"""Set by the agent for the training process: the cluster version it belongs to."""
ENV_SNAPSHOT_DIR = "EDL_SNAPSHOT_DIR"
"""Set by the agent for the training process: the node's folder in shared memory for copies of the model."""
ENV_SHARED_MEMORY = "EDL_SHARED_MEMORY"
"""The path under which the agent makes that folder; default ``/dev/shm``."""
ENV_PROGRAM = "EDL_PROGRAM"
"""The training program that travels with its job (`edl_workflows.core.jobs.elastic_job.program`)."""
ENV_PROGRAM_DIGEST = "EDL_PROGRAM_SHA256"
ENV_CHECKPOINT_DIR = "EDL_CHECKPOINT_DIR"
"""Folder or URI of the job's checkpoints, for programs that are not told otherwise."""
ENV_TRACEPARENT = "TRACEPARENT"
ENV_TF_CONFIG = "TF_CONFIG"
ENV_PET_NNODES = "PET_NNODES"
"""The agent of a worker in a collective job sets this and the next nine variables. ``torchrun`` reads
``PET_<OPTION>`` for each of its options; ``torch.distributed`` reads the others."""
ENV_PET_NODE_RANK = "PET_NODE_RANK"
ENV_PET_NPROC_PER_NODE = "PET_NPROC_PER_NODE"
ENV_PET_MASTER_ADDR = "PET_MASTER_ADDR"
ENV_PET_MASTER_PORT = "PET_MASTER_PORT"
ENV_TORCH_MASTER_ADDR = "MASTER_ADDR"
ENV_TORCH_MASTER_PORT = "MASTER_PORT"
ENV_WORLD_SIZE = "WORLD_SIZE"
ENV_RANK = "RANK"
ENV_LOCAL_RANK = "LOCAL_RANK"


TOKEN_KEY = "token"  # noqa: S105 - the Secret's key, not a secret
STATE_KEY = "state"
STATE_HEAD_KEY = "head"
STATE_PARTS = 4
"""The most parts of a job's state; each is in a ConfigMap."""

MAX_JOB_NAME = 37
"""Service names and label values have at most 63 characters, and the longest name made from a job's,
`master_name`, adds 26. A node's name then still has room for ids of up to 12 digits."""


def node_name(job: str, node_type: str, node_id: int) -> str:
    """Name of a node's pod: ``<job>-edljob-<type>-<id>`` as upstream's scaler makes it."""
    return f"{job}-edljob-{node_type}-{node_id}"


def parse_node_name(job: str, name: str) -> tuple[str, int] | None:
    """Type and id in a name that `node_name` made for this job; None for any other name."""
    node_type, _, node_id = name.removeprefix(f"{job}-edljob-").rpartition("-")
    if node_type not in NODE_PORTS or not (node_id.isascii() and node_id.isdigit()):
        return None
    return (node_type, int(node_id)) if name == node_name(job, node_type, int(node_id)) else None


def master_pod_name(job: str, index: int) -> str:
    """Name of the job's master pod with this index; each replacement has the next index."""
    return f"{master_name(job)}-{index}"


def master_account_name(job: str) -> str:
    """Name of the master's ServiceAccount, and of the Role and RoleBinding that give it its rights."""
    return f"{job}-edljob-master"


def spec_plan_name(job: str, generation: int) -> str:
    """Name of the ScalePlan that the controller creates when the job's replicas are edited."""
    return f"{job}-spec-{generation}"


def own_plan_name(job: str, number: int) -> str:
    """Name of the ScalePlan with which the job's master carries out plan number `number` of its
    optimizer."""
    return f"{job}-optimize-{number}"


def master_name(job: str) -> str:
    """Name of the master's service, and of its pod up to the ``-<index>`` that follows."""
    return f"elasticjob-{job}-dlrover-master"


def nodes_service_name(job: str) -> str:
    """Name of the headless service that gives the job's nodes their DNS names."""
    return f"{job}-edljob"


def token_secret_name(job: str) -> str:
    """Name of the Secret (key ``token``) that the job's pods and its master share."""
    return f"{job}-edljob-token"


def state_config_map_name(job: str) -> str:
    """Name of the ConfigMap (key ``state``) in which the master keeps its durable state."""
    return f"{job}-edljob-state"


def state_part_names(job: str, slot: str = "ab") -> list[str]:
    """Names of the ConfigMaps for the parts of a state that does not fit into one: of two slots, which are
    written in turn, or of one of them.
    """
    return [f"{state_config_map_name(job)}-{letter}{n}" for letter in slot for n in range(STATE_PARTS)]


def network_policy_name(kind: str, job: str) -> str:
    """Name of a job's NetworkPolicy. It includes the kind, since jobs of two kinds may have the same name."""
    return f"{job}-{kind.lower()}"


def node_address(job: str, namespace: str, node_type: str, node_id: int, version: int) -> str:
    """Address at which the node's process of this cluster version listens, as
    ``node.service.namespace.svc:port``.
    """
    port = NODE_PORTS[node_type][version % 2]
    return f"{node_name(job, node_type, node_id)}.{nodes_service_name(job)}.{namespace}.svc:{port}"


def master_address(job: str, namespace: str) -> str:
    """Address of the master's HTTP API."""
    return f"{master_name(job)}.{namespace}.svc:{MASTER_PORT}"
