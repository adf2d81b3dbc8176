"""The manifests of an installation: definitions, permissions, the controller and optional components. This
package is pure and does not talk to a cluster.

- `options`: the options of an installation; `rbac`: permissions; `workloads`: Deployments and Services;
  `admission`: admission policies; `manifests`: all manifests in the order in which they are applied. `edl
  install` prints them.
"""
