// Command operator is a controller as its users write it, with client-go's and controller-runtime's defaults, which
// speak protobuf for built-in kinds. It elects a leader, and for each ConfigMap with the label "run" it makes a Role, a
// RoleBinding and a Pod that the ConfigMap owns, and records an event. When the pod has succeeded, it says so in the
// ConfigMap.
package main

import (
	"context"
	"os"

	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

type reconciler struct {
	client.Client
	recorder record.EventRecorder
}

func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var owner core.ConfigMap
	if err := r.Get(ctx, request.NamespacedName, &owner); err != nil || owner.Labels["run"] == "" {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	for _, child := range children(&owner) {
		if err := ctrl.SetControllerReference(&owner, child, r.Scheme()); err != nil {
			return ctrl.Result{}, err
		}
		if err := r.Create(ctx, child); err == nil {
			r.recorder.Eventf(&owner, core.EventTypeNormal, "Created", "made %T %s", child, child.GetName())
		} else if !errors.IsAlreadyExists(err) {
			return ctrl.Result{}, err
		}
	}
	var pod core.Pod
	if err := r.Get(ctx, request.NamespacedName, &pod); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if phase := string(pod.Status.Phase); owner.Data["phase"] != phase {
		owner.Data = map[string]string{"phase": phase}
		return ctrl.Result{}, r.Update(ctx, &owner)
	}
	return ctrl.Result{}, nil
}

func children(owner *core.ConfigMap) []client.Object {
	place := meta.ObjectMeta{Namespace: owner.Namespace, Name: owner.Name}
	return []client.Object{
		&rbac.Role{
			ObjectMeta: place,
			Rules:      []rbac.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}},
		},
		&rbac.RoleBinding{
			ObjectMeta: place,
			RoleRef:    rbac.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: owner.Name},
			Subjects:   []rbac.Subject{{Kind: "ServiceAccount", Name: "default", Namespace: owner.Namespace}},
		},
		&core.Pod{ObjectMeta: place, Spec: core.PodSpec{
			RestartPolicy:                 core.RestartPolicyNever,
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			AutomountServiceAccountToken:  ptr.To(false),
			Volumes:                       []core.Volume{{Name: "scratch", VolumeSource: core.VolumeSource{EmptyDir: &core.EmptyDirVolumeSource{}}}},
			Containers: []core.Container{{
				Name:    "main",
				Image:   "none",
				Command: []string{"sh", "-c", owner.Labels["run"]},
				Env: []core.EnvVar{
					{Name: "GREETING", Value: "hello"},
					{Name: "POD", ValueFrom: &core.EnvVarSource{FieldRef: &core.ObjectFieldSelector{FieldPath: "metadata.name"}}},
				},
				Resources:    core.ResourceRequirements{Requests: core.ResourceList{"cpu": resource.MustParse("100m")}},
				StartupProbe: &core.Probe{ProbeHandler: core.ProbeHandler{Exec: &core.ExecAction{Command: []string{"true"}}}},
			}},
		}},
	}
}

func main() {
	ctrl.SetLogger(zap.New())
	if err := run(); err != nil {
		ctrl.Log.Error(err, "the operator ended")
		os.Exit(1)
	}
}

func run() error {
	namespace := os.Getenv("NAMESPACE")
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		LeaderElection:          true,
		LeaderElectionID:        "operator",
		LeaderElectionNamespace: namespace,
		Cache:                   cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}},
		Metrics:                 server.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	err = ctrl.NewControllerManagedBy(manager).For(&core.ConfigMap{}).Owns(&core.Pod{}).
		Complete(&reconciler{manager.GetClient(), manager.GetEventRecorderFor("operator")})
	if err != nil {
		return err
	}
	return manager.Start(ctrl.SetupSignalHandler())
}
