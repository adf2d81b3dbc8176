// Says what Argo's own validation finds in manifests: the JSON list of texts on stdin gives one of messages on stdout, an
// empty one where nothing is wrong. No template but a manifest's own is known to it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	wfv1 "github.com/argoproj/argo-workflows/v4/pkg/apis/workflow/v1alpha1"
	"github.com/argoproj/argo-workflows/v4/util/logging"
	"github.com/argoproj/argo-workflows/v4/workflow/validate"
	"sigs.k8s.io/yaml"
)

var errNotGiven = errors.New("not given")

type templates struct{}

func (templates) Get(context.Context, string) (*wfv1.WorkflowTemplate, error) {
	return nil, errNotGiven
}

type clusterTemplates struct{}

func (clusterTemplates) Get(context.Context, string) (*wfv1.ClusterWorkflowTemplate, error) {
	return nil, errNotGiven
}

func problem(ctx context.Context, text []byte) error {
	var object struct{ Kind string }
	if err := yaml.Unmarshal(text, &object); err != nil {
		return err
	}
	lint := validate.Opts{Lint: true}
	switch object.Kind {
	case "Workflow":
		var found wfv1.Workflow
		if err := yaml.UnmarshalStrict(text, &found); err != nil {
			return err
		}
		return validate.Workflow(ctx, templates{}, clusterTemplates{}, &found, nil, lint)
	case "WorkflowTemplate":
		var found wfv1.WorkflowTemplate
		if err := yaml.UnmarshalStrict(text, &found); err != nil {
			return err
		}
		return validate.WorkflowTemplate(ctx, templates{}, clusterTemplates{}, &found, nil, lint)
	case "ClusterWorkflowTemplate":
		var found wfv1.ClusterWorkflowTemplate
		if err := yaml.UnmarshalStrict(text, &found); err != nil {
			return err
		}
		return validate.ClusterWorkflowTemplate(ctx, templates{}, clusterTemplates{}, &found, nil, lint)
	case "CronWorkflow":
		var found wfv1.CronWorkflow
		if err := yaml.UnmarshalStrict(text, &found); err != nil {
			return err
		}
		return validate.CronWorkflow(ctx, templates{}, clusterTemplates{}, &found, nil)
	}
	return fmt.Errorf("kind %s is not validated", object.Kind)
}

func main() {
	var texts []string
	if err := json.NewDecoder(os.Stdin).Decode(&texts); err != nil {
		panic(err)
	}
	ctx := logging.WithLogger(context.Background(), logging.NewSlogLogger(logging.Error, logging.Text))
	messages := make([]string, 0, len(texts))
	for _, text := range texts {
		message := ""
		if err := problem(ctx, []byte(text)); err != nil {
			message = err.Error()
		}
		messages = append(messages, message)
	}
	if err := json.NewEncoder(os.Stdout).Encode(messages); err != nil {
		panic(err)
	}
}
