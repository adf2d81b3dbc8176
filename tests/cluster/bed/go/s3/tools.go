//go:build tools

// Package tools names what is built, for `go mod tidy`.
package tools

import _ "github.com/johannesboyne/gofakes3/cmd/gofakes3"
