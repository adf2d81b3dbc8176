// Command protobuf_fields prints the protobuf field tables of the built-in kinds that the embedded API server reads, as
// JSON, taken from the Go types' own tags:
//
//	cd tests/clients/go && go run ./protobuf_fields > ../../../edl_workflows/local/apiserver/protobuf_fields.json
//
// Each message is {field number: [JSON name, kind]} or [JSON name, kind, true]. The name is empty for fields that JSON
// has inline. A kind is a scalar's or another message's name; "[]" before it means repeated, "{}" a map from text.
// True: a zero or empty value stands in JSON too; that of other fields is left out.
package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	autoscaling "k8s.io/api/autoscaling/v1"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	scheduling "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var roots = []any{
	core.Binding{}, core.ConfigMap{}, core.Endpoints{}, core.Event{}, core.Namespace{}, core.Node{}, core.Pod{},
	core.Secret{}, core.Service{}, core.ServiceAccount{}, coordination.Lease{}, rbac.Role{}, rbac.RoleBinding{},
	scheduling.PriorityClass{}, policy.Eviction{}, autoscaling.Scale{}, meta.DeleteOptions{},
	authentication.SelfSubjectReview{}, authentication.TokenRequest{}, authentication.TokenReview{},
	authorization.SelfSubjectAccessReview{}, authorization.SelfSubjectRulesReview{}, authorization.SubjectAccessReview{},
}

// What nothing in the API server reads: who manages which fields, and further details of users.
var skipped = map[reflect.Type]bool{
	reflect.TypeFor[[]meta.ManagedFieldsEntry]():            true,
	reflect.TypeFor[map[string]authentication.ExtraValue](): true,
	reflect.TypeFor[map[string]authorization.ExtraValue]():  true,
}

var special = map[reflect.Type]string{
	reflect.TypeFor[resource.Quantity]():  "quantity",
	reflect.TypeFor[meta.Time]():          "time",
	reflect.TypeFor[meta.MicroTime]():     "micro-time",
	reflect.TypeFor[intstr.IntOrString](): "int-or-string",
}

type table struct {
	messages map[string]map[string][]any
	types    map[string]reflect.Type
}

func (t table) message(of reflect.Type) string {
	name := of.Name()
	if known, ok := t.types[name]; ok {
		if known != of {
			panic(fmt.Sprintf("two messages are called %s", name))
		}
		return name
	}
	t.types[name] = of
	fields := map[string][]any{}
	t.messages[name] = fields
	for i := range of.NumField() {
		field := of.Field(i)
		tag := strings.Split(field.Tag.Get("protobuf"), ",")
		if len(tag) < 2 || skipped[field.Type] {
			continue
		}
		jsonName, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		kind := t.kind(field.Type)
		entry := []any{jsonName, kind}
		number := kind == "int" || kind == "bool"
		if field.Type.Kind() == reflect.Pointer || (number && !strings.Contains(options, "omitempty")) {
			entry = append(entry, true)
		}
		fields[tag[1]] = entry
	}
	return name
}

func (t table) kind(of reflect.Type) string {
	if name, ok := special[of]; ok {
		return name
	}
	switch of.Kind() {
	case reflect.Pointer:
		return t.kind(of.Elem())
	case reflect.String:
		return "string"
	case reflect.Int32, reflect.Int64:
		return "int"
	case reflect.Bool:
		return "bool"
	case reflect.Struct:
		return t.message(of)
	case reflect.Slice:
		if of.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		return "[]" + t.kind(of.Elem())
	case reflect.Map:
		return "{}" + t.kind(of.Elem())
	}
	panic(fmt.Sprintf("%s has no kind", of))
}

func main() {
	t := table{map[string]map[string][]any{}, map[string]reflect.Type{}}
	for _, root := range roots {
		t.message(reflect.TypeOf(root))
	}
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(t.messages)) {
		text, err := json.Marshal(t.messages[name])
		if err != nil {
			panic(err)
		}
		lines = append(lines, fmt.Sprintf("%q: %s", name, text))
	}
	fmt.Fprintf(os.Stdout, "{\n%s\n}\n", strings.Join(lines, ",\n"))
}
