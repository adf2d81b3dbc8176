//go:build tools

// Package tools names the peer's program, so that its module is required.
package tools

import _ "github.com/kubeflow/training-operator/cmd/training-operator.v1"
