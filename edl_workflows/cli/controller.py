"""``edl controller``: the manager as a process."""

import typer

from edl_workflows.cli.controller_options import (
    AllNamespaces,
    AllocatorPeriod,
    AllocatorPolicy,
    Autoscaler,
    AutoscalerCoolDown,
    AutoscalerDryRun,
    AutoscalerPeriod,
    DiJobResources,
    DiPriorityClasses,
    DiServerUrl,
    DiServiceDomain,
    MasterImage,
    MasterTemplate,
    MaxLoad,
    NetworkPolicies,
    TfClusterDomain,
    Workers,
    autoscaler,
    settings_of,
)
from edl_workflows.cli.options import (
    Context,
    Kinds,
    Kubeconfig,
    LeaderElect,
    LeaderElectNamespace,
    LogFormat,
    Logs,
    MetricsHost,
    MetricsPort,
    Namespace,
    Verbose,
    configure_logs,
    connect,
    kinds_of,
)
from edl_workflows.jobs import names

app = typer.Typer(help="The controller of all job kinds.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep `run` a command of its own while it is the only one."""


@app.command()
def run(
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    kinds: Kinds = "",
    workers: Workers = 16,
    leader_elect: LeaderElect = True,
    leader_elect_namespace: LeaderElectNamespace = None,
    metrics_host: MetricsHost = "127.0.0.1",
    metrics_port: MetricsPort = names.CONTROLLER_PORT,
    master_image: MasterImage = None,
    master_template: MasterTemplate = None,
    tf_cluster_domain: TfClusterDomain = None,
    di_server_url: DiServerUrl = None,
    di_service_domain: DiServiceDomain = None,
    di_job_resources: DiJobResources = "",
    di_priority_classes: DiPriorityClasses = "",
    network_policies: NetworkPolicies = False,
    allocator_policy: AllocatorPolicy = "fit",
    allocator_period: AllocatorPeriod = 60.0,
    autoscale: Autoscaler = False,
    autoscaler_dry_run: AutoscalerDryRun = False,
    autoscaler_period: AutoscalerPeriod = 30.0,
    autoscaler_cool_down: AutoscalerCoolDown = 60.0,
    max_load: MaxLoad = "",
    log_format: Logs = LogFormat.AUTO,
    verbose: Verbose = False,
) -> None:
    """Reconcile jobs until SIGTERM.

    Ends with code 1 when it loses its leadership: whoever restarts it gets a fresh candidate.
    """
    from edl_workflows.controller.allocator import AllocatorOptions
    from edl_workflows.controller.manager import ManagerOptions
    from edl_workflows.controller.run import Controller, RunOptions
    from edl_workflows.jobs.kinds import choose_kinds
    from edl_workflows.kube.resources import ALL_NAMESPACES
    from edl_workflows.process.leader import Election
    from edl_workflows.process.signals import stop_on_signals

    rows = choose_kinds(kinds_of(kinds))
    configure_logs(log_format, verbose=verbose)
    cluster = connect(kubeconfig, context, namespace, log_retries=True)
    settings = settings_of(
        master_image=master_image,
        master_template=master_template,
        tf_cluster_domain=tf_cluster_domain,
        di_server_url=di_server_url,
        di_service_domain=di_service_domain,
        di_job_resources=di_job_resources,
        di_priority_classes=di_priority_classes,
        network_policies=network_policies,
    )
    allocator = AllocatorOptions(allocator_policy, allocator_period)
    scaler = None
    if autoscale or autoscaler_dry_run:
        scaler = autoscaler(autoscaler_period, autoscaler_cool_down, max_load, dry_run=autoscaler_dry_run)
    where = ALL_NAMESPACES if all_namespaces else cluster.namespace
    options = RunOptions(
        manager=ManagerOptions(where, workers, settings, rows, allocator, scaler),
        election=Election(leader_elect_namespace or cluster.namespace) if leader_elect else None,
        metrics_host=metrics_host,
        metrics_port=metrics_port or None,
    )
    Controller(cluster, options).run(stop_on_signals())
