"""The types of a pod template's values, as the API server decodes them.

It refuses a pod with a value of another type (``env: [{name: RATE, value: 0.1}]``), but only when the pod is
created: after the job was accepted, and for a template that nobody looks at any more.
"""

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from edl_workflows.core.exceptions import Problem
from edl_workflows.core.kubernetes.objects import parse_quantity

ROOT = "PodTemplateSpec"
_SHOWN = 40


def find_type_problems(value: Any, kind: str = ROOT) -> Iterator[Problem]:
    """The values of a pod template, or of a part of one, whose types the API server refuses. Fields that are
    not in `TYPES` are not checked, and neither are absent values (null).

    Args:
        value: what has the type.
        kind: a type as in `TYPES`, such as ``Volume[]``.
    """
    yield from _typed(value, kind, ())


def _fields(value: Mapping[str, Any], kind: str, path: tuple[str, ...]) -> Iterator[Problem]:
    for name, field_type in read_types()[kind].items():
        if name in value:
            yield from _typed(value[name], field_type, (*path, name))


def _typed(value: Any, kind: str, path: tuple[str, ...]) -> Iterator[Problem]:
    if value is None:
        return
    if kind.endswith("[]"):
        if isinstance(value, list):
            yield from _parts(enumerate(value), kind[:-2], path)
        else:
            yield _problem(path, "must be a list")
    elif not (kind.endswith("{}") or kind in read_types()):
        if message := _scalar_problem(value, kind):
            yield _problem(path, message)
    elif not isinstance(value, Mapping):
        yield _problem(path, "must be a map")
    elif kind.endswith("{}"):
        yield from _parts(value.items(), kind[:-2], path)
    else:
        yield from _fields(value, kind, path)


def _parts(parts: Iterable[tuple[Any, Any]], kind: str, path: tuple[str, ...]) -> Iterator[Problem]:
    for key, part in parts:
        yield from _typed(part, kind, (*path, str(key)))


def _scalar_problem(value: Any, kind: str) -> str:
    """What is wrong with a value that is neither a list nor a map; "" if nothing is."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match kind:
        case "str" if not isinstance(value, str):
            quoted = isinstance(value, bool | int | float)
            return f"must be a string{f': write {json.dumps(value)[:_SHOWN]} in quotes' if quoted else ''}"
        case "bool" if not isinstance(value, bool):
            return f"must be true or false (got {value!r:.{_SHOWN}})"
        case "int" if isinstance(value, bool) or not isinstance(value, int):
            return f"must be an integer (got {value!r:.{_SHOWN}})"
        case "quantity" if not number:
            if not isinstance(value, str):
                return f"must be a quantity such as 500m or 4Gi (got {value!r:.{_SHOWN}})"
            try:
                parse_quantity(value)
            except ValueError as error:
                return str(error)
    return ""


def _problem(path: tuple[str, ...], message: str) -> Problem:
    return Problem(".".join(path), message)


@functools.cache
def read_types() -> Mapping[str, Mapping[str, str]]:
    """The fields of each type of `TYPES`, with their types."""
    types: dict[str, dict[str, str]] = {}
    fields: dict[str, str] = {}
    for word in TYPES.split():
        name, _, field_type = word.partition("=")
        if field_type:
            fields[name] = field_type
        else:
            fields = types.setdefault(name.removesuffix(":"), {})
    return types


TYPES = """
AWSElasticBlockStoreVolumeSource: fsType=str partition=int readOnly=bool volumeID=str
Affinity: nodeAffinity=NodeAffinity podAffinity=PodAffinity podAntiAffinity=PodAntiAffinity
AppArmorProfile: localhostProfile=str type=str
AzureDiskVolumeSource: cachingMode=str diskName=str diskURI=str fsType=str kind=str readOnly=bool
AzureFileVolumeSource: readOnly=bool secretName=str shareName=str
CSIVolumeSource: driver=str fsType=str nodePublishSecretRef=LocalObjectReference readOnly=bool
  volumeAttributes=str{}
Capabilities: add=str[] drop=str[]
CephFSVolumeSource: monitors=str[] path=str readOnly=bool secretFile=str secretRef=LocalObjectReference
  user=str
CinderVolumeSource: fsType=str readOnly=bool secretRef=LocalObjectReference volumeID=str
ClusterTrustBundleProjection: labelSelector=LabelSelector name=str optional=bool path=str signerName=str
ConfigMapEnvSource: name=str optional=bool
ConfigMapKeySelector: key=str name=str optional=bool
ConfigMapProjection: items=KeyToPath[] name=str optional=bool
ConfigMapVolumeSource: defaultMode=int items=KeyToPath[] name=str optional=bool
Container: args=str[] command=str[] env=EnvVar[] envFrom=EnvFromSource[] image=str imagePullPolicy=str
  lifecycle=Lifecycle livenessProbe=Probe name=str ports=ContainerPort[] readinessProbe=Probe
  resizePolicy=ContainerResizePolicy[] resources=ResourceRequirements restartPolicy=str
  restartPolicyRules=ContainerRestartRule[] securityContext=SecurityContext startupProbe=Probe stdin=bool
  stdinOnce=bool terminationMessagePath=str terminationMessagePolicy=str tty=bool
  volumeDevices=VolumeDevice[] volumeMounts=VolumeMount[] workingDir=str
ContainerPort: containerPort=int hostIP=str hostPort=int name=str protocol=str
ContainerResizePolicy: resourceName=str restartPolicy=str
ContainerRestartRule: action=str exitCodes=ContainerRestartRuleOnExitCodes
ContainerRestartRuleOnExitCodes: operator=str values=int[]
DownwardAPIProjection: items=DownwardAPIVolumeFile[]
DownwardAPIVolumeFile: fieldRef=ObjectFieldSelector mode=int path=str resourceFieldRef=ResourceFieldSelector
DownwardAPIVolumeSource: defaultMode=int items=DownwardAPIVolumeFile[]
EmptyDirVolumeSource: medium=str sizeLimit=quantity
EnvFromSource: configMapRef=ConfigMapEnvSource prefix=str secretRef=SecretEnvSource
EnvVar: name=str value=str valueFrom=EnvVarSource
EnvVarSource: configMapKeyRef=ConfigMapKeySelector fieldRef=ObjectFieldSelector fileKeyRef=FileKeySelector
  resourceFieldRef=ResourceFieldSelector secretKeyRef=SecretKeySelector
EphemeralContainer: args=str[] command=str[] env=EnvVar[] envFrom=EnvFromSource[] image=str
  imagePullPolicy=str lifecycle=Lifecycle livenessProbe=Probe name=str ports=ContainerPort[]
  readinessProbe=Probe resizePolicy=ContainerResizePolicy[] resources=ResourceRequirements restartPolicy=str
  restartPolicyRules=ContainerRestartRule[] securityContext=SecurityContext startupProbe=Probe stdin=bool
  stdinOnce=bool targetContainerName=str terminationMessagePath=str terminationMessagePolicy=str tty=bool
  volumeDevices=VolumeDevice[] volumeMounts=VolumeMount[] workingDir=str
EphemeralVolumeSource: volumeClaimTemplate=PersistentVolumeClaimTemplate
ExecAction: command=str[]
FCVolumeSource: fsType=str lun=int readOnly=bool targetWWNs=str[] wwids=str[]
FileKeySelector: key=str optional=bool path=str volumeName=str
FlexVolumeSource: driver=str fsType=str options=str{} readOnly=bool secretRef=LocalObjectReference
FlockerVolumeSource: datasetName=str datasetUUID=str
GCEPersistentDiskVolumeSource: fsType=str partition=int pdName=str readOnly=bool
GRPCAction: port=int service=str
GitRepoVolumeSource: directory=str repository=str revision=str
GlusterfsVolumeSource: endpoints=str path=str readOnly=bool
HTTPGetAction: host=str httpHeaders=HTTPHeader[] path=str scheme=str
HTTPHeader: name=str value=str
HostAlias: hostnames=str[] ip=str
HostPathVolumeSource: path=str type=str
ISCSIVolumeSource: chapAuthDiscovery=bool chapAuthSession=bool fsType=str initiatorName=str iqn=str
  iscsiInterface=str lun=int portals=str[] readOnly=bool secretRef=LocalObjectReference targetPortal=str
ImageVolumeSource: pullPolicy=str reference=str
KeyToPath: key=str mode=int path=str
LabelSelector: matchExpressions=LabelSelectorRequirement[] matchLabels=str{}
LabelSelectorRequirement: key=str operator=str values=str[]
Lifecycle: postStart=LifecycleHandler preStop=LifecycleHandler stopSignal=str
LifecycleHandler: exec=ExecAction httpGet=HTTPGetAction sleep=SleepAction tcpSocket=TCPSocketAction
LocalObjectReference: name=str
ManagedFieldsEntry: apiVersion=str fieldsType=str manager=str operation=str subresource=str time=str
NFSVolumeSource: path=str readOnly=bool server=str
NodeAffinity: preferredDuringSchedulingIgnoredDuringExecution=PreferredSchedulingTerm[]
  requiredDuringSchedulingIgnoredDuringExecution=NodeSelector
NodeSelector: nodeSelectorTerms=NodeSelectorTerm[]
NodeSelectorRequirement: key=str operator=str values=str[]
NodeSelectorTerm: matchExpressions=NodeSelectorRequirement[] matchFields=NodeSelectorRequirement[]
ObjectFieldSelector: apiVersion=str fieldPath=str
ObjectMeta: annotations=str{} creationTimestamp=str deletionGracePeriodSeconds=int deletionTimestamp=str
  finalizers=str[] generateName=str generation=int labels=str{} managedFields=ManagedFieldsEntry[] name=str
  namespace=str ownerReferences=OwnerReference[] resourceVersion=str selfLink=str uid=str
OwnerReference: apiVersion=str blockOwnerDeletion=bool controller=bool kind=str name=str uid=str
PersistentVolumeClaimSpec: accessModes=str[] dataSource=TypedLocalObjectReference
  dataSourceRef=TypedObjectReference resources=VolumeResourceRequirements selector=LabelSelector
  storageClassName=str volumeAttributesClassName=str volumeMode=str volumeName=str
PersistentVolumeClaimTemplate: metadata=ObjectMeta spec=PersistentVolumeClaimSpec
PersistentVolumeClaimVolumeSource: claimName=str readOnly=bool
PhotonPersistentDiskVolumeSource: fsType=str pdID=str
PodAffinity: preferredDuringSchedulingIgnoredDuringExecution=WeightedPodAffinityTerm[]
  requiredDuringSchedulingIgnoredDuringExecution=PodAffinityTerm[]
PodAffinityTerm: labelSelector=LabelSelector matchLabelKeys=str[] mismatchLabelKeys=str[]
  namespaceSelector=LabelSelector namespaces=str[] topologyKey=str
PodAntiAffinity: preferredDuringSchedulingIgnoredDuringExecution=WeightedPodAffinityTerm[]
  requiredDuringSchedulingIgnoredDuringExecution=PodAffinityTerm[]
PodCertificateProjection: certificateChainPath=str credentialBundlePath=str keyPath=str keyType=str
  maxExpirationSeconds=int signerName=str userAnnotations=str{}
PodDNSConfig: nameservers=str[] options=PodDNSConfigOption[] searches=str[]
PodDNSConfigOption: name=str value=str
PodOS: name=str
PodReadinessGate: conditionType=str
PodResourceClaim: name=str resourceClaimName=str resourceClaimTemplateName=str
PodSchedulingGate: name=str
PodSchedulingGroup: podGroupName=str
PodSecurityContext: appArmorProfile=AppArmorProfile fsGroup=int fsGroupChangePolicy=str runAsGroup=int
  runAsNonRoot=bool runAsUser=int seLinuxChangePolicy=str seLinuxOptions=SELinuxOptions
  seccompProfile=SeccompProfile supplementalGroups=int[] supplementalGroupsPolicy=str sysctls=Sysctl[]
  windowsOptions=WindowsSecurityContextOptions
PodSpec: activeDeadlineSeconds=int affinity=Affinity automountServiceAccountToken=bool
  containers=Container[] dnsConfig=PodDNSConfig dnsPolicy=str enableServiceLinks=bool
  ephemeralContainers=EphemeralContainer[] hostAliases=HostAlias[] hostIPC=bool hostNetwork=bool
  hostPID=bool hostUsers=bool hostname=str hostnameOverride=str imagePullSecrets=LocalObjectReference[]
  initContainers=Container[] nodeName=str nodeSelector=str{} os=PodOS overhead=quantity{}
  preemptionPolicy=str priority=int priorityClassName=str readinessGates=PodReadinessGate[]
  resourceClaims=PodResourceClaim[] resources=ResourceRequirements restartPolicy=str runtimeClassName=str
  schedulerName=str schedulingGates=PodSchedulingGate[] schedulingGroup=PodSchedulingGroup
  securityContext=PodSecurityContext serviceAccount=str serviceAccountName=str setHostnameAsFQDN=bool
  shareProcessNamespace=bool subdomain=str terminationGracePeriodSeconds=int tolerations=Toleration[]
  topologySpreadConstraints=TopologySpreadConstraint[] volumes=Volume[]
PodTemplateSpec: metadata=ObjectMeta spec=PodSpec
PortworxVolumeSource: fsType=str readOnly=bool volumeID=str
PreferredSchedulingTerm: preference=NodeSelectorTerm weight=int
Probe: exec=ExecAction failureThreshold=int grpc=GRPCAction httpGet=HTTPGetAction initialDelaySeconds=int
  periodSeconds=int successThreshold=int tcpSocket=TCPSocketAction terminationGracePeriodSeconds=int
  timeoutSeconds=int
ProjectedVolumeSource: defaultMode=int sources=VolumeProjection[]
QuobyteVolumeSource: group=str readOnly=bool registry=str tenant=str user=str volume=str
RBDVolumeSource: fsType=str image=str keyring=str monitors=str[] pool=str readOnly=bool
  secretRef=LocalObjectReference user=str
ResourceClaim: name=str request=str
ResourceFieldSelector: containerName=str divisor=quantity resource=str
ResourceRequirements: claims=ResourceClaim[] limits=quantity{} requests=quantity{}
SELinuxOptions: level=str role=str type=str user=str
ScaleIOVolumeSource: fsType=str gateway=str protectionDomain=str readOnly=bool
  secretRef=LocalObjectReference sslEnabled=bool storageMode=str storagePool=str system=str volumeName=str
SeccompProfile: localhostProfile=str type=str
SecretEnvSource: name=str optional=bool
SecretKeySelector: key=str name=str optional=bool
SecretProjection: items=KeyToPath[] name=str optional=bool
SecretVolumeSource: defaultMode=int items=KeyToPath[] optional=bool secretName=str
SecurityContext: allowPrivilegeEscalation=bool appArmorProfile=AppArmorProfile capabilities=Capabilities
  privileged=bool procMount=str readOnlyRootFilesystem=bool runAsGroup=int runAsNonRoot=bool runAsUser=int
  seLinuxOptions=SELinuxOptions seccompProfile=SeccompProfile windowsOptions=WindowsSecurityContextOptions
ServiceAccountTokenProjection: audience=str expirationSeconds=int path=str
SleepAction: seconds=int
StorageOSVolumeSource: fsType=str readOnly=bool secretRef=LocalObjectReference volumeName=str
  volumeNamespace=str
Sysctl: name=str value=str
TCPSocketAction: host=str
Toleration: effect=str key=str operator=str tolerationSeconds=int value=str
TopologySpreadConstraint: labelSelector=LabelSelector matchLabelKeys=str[] maxSkew=int minDomains=int
  nodeAffinityPolicy=str nodeTaintsPolicy=str topologyKey=str whenUnsatisfiable=str
TypedLocalObjectReference: apiGroup=str kind=str name=str
TypedObjectReference: apiGroup=str kind=str name=str namespace=str
Volume: awsElasticBlockStore=AWSElasticBlockStoreVolumeSource azureDisk=AzureDiskVolumeSource
  azureFile=AzureFileVolumeSource cephfs=CephFSVolumeSource cinder=CinderVolumeSource
  configMap=ConfigMapVolumeSource csi=CSIVolumeSource downwardAPI=DownwardAPIVolumeSource
  emptyDir=EmptyDirVolumeSource ephemeral=EphemeralVolumeSource fc=FCVolumeSource
  flexVolume=FlexVolumeSource flocker=FlockerVolumeSource gcePersistentDisk=GCEPersistentDiskVolumeSource
  gitRepo=GitRepoVolumeSource glusterfs=GlusterfsVolumeSource hostPath=HostPathVolumeSource
  image=ImageVolumeSource iscsi=ISCSIVolumeSource name=str nfs=NFSVolumeSource
  persistentVolumeClaim=PersistentVolumeClaimVolumeSource
  photonPersistentDisk=PhotonPersistentDiskVolumeSource portworxVolume=PortworxVolumeSource
  projected=ProjectedVolumeSource quobyte=QuobyteVolumeSource rbd=RBDVolumeSource
  scaleIO=ScaleIOVolumeSource secret=SecretVolumeSource storageos=StorageOSVolumeSource
  vsphereVolume=VsphereVirtualDiskVolumeSource
VolumeDevice: devicePath=str name=str
VolumeMount: mountPath=str mountPropagation=str name=str readOnly=bool recursiveReadOnly=str subPath=str
  subPathExpr=str
VolumeProjection: clusterTrustBundle=ClusterTrustBundleProjection configMap=ConfigMapProjection
  downwardAPI=DownwardAPIProjection podCertificate=PodCertificateProjection secret=SecretProjection
  serviceAccountToken=ServiceAccountTokenProjection
VolumeResourceRequirements: limits=quantity{} requests=quantity{}
VsphereVirtualDiskVolumeSource: fsType=str storagePolicyID=str storagePolicyName=str volumePath=str
WeightedPodAffinityTerm: podAffinityTerm=PodAffinityTerm weight=int
WindowsSecurityContextOptions: gmsaCredentialSpec=str gmsaCredentialSpecName=str hostProcess=bool
  runAsUserName=str
"""
"""Type: its fields, each with its type; ``[]`` is a list and ``{}`` a map with strings as keys. Fields that
take integers and strings (ports of probes) are left out. `tests/contract` compares it with the Kubernetes
client's models.
"""
