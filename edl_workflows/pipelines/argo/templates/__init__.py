"""The stages as Argo templates, made with Hera. Only these modules import it.

The modules in `__all__` are the public API: `builders` (a template a stage), `groups` and `workflows`
(ready-made ones), `artifacts`, `step` (`WaitMode`) and `serializer` (`to_manifest`, `to_yaml`). `catalog`
lists what ``edl argo build`` makes; `steps`, `step_fields` and `outputs` derive the steps from the
descriptions of the stages.
"""

__all__ = ["artifacts", "builders", "groups", "serializer", "step", "workflows"]
