//go:build tools

// Package tools names what is built, for `go mod tidy`.
package tools

import _ "sigs.k8s.io/kwok/cmd/kwok"
