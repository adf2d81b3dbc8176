"""Stages as steps of Argo Workflows: templates made with Hera, the agent that serves their plugin steps, and
a linter.

Hera is imported only by the modules that build templates; the agent and the linter run without it.
"""
