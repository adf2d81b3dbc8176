"""Pollux (OSDI'21): allocations that maximize the goodput of all jobs together, and share it fairly.

- `goodput`: throughput and statistical efficiency of a job; `goodput_fit`: their parameters from
  measurements.
- `hints`: what jobs report of their training; `model`: jobs and options of the optimizer; `speedup`: speed-up
  tables.
- `optimizer`: the allocation of all jobs; `values`: what an allocation is worth; `search`: packing and
  exchanges.
- `policy`: the policies `pollux` and `shortest`.
"""
