"""Paddle EDL's fulfilment planner: how many instances each elastic job of a cluster gets.

- `fulfilment`: the planner; `jobs`: its view of jobs; `nodes`: the free capacity of nodes.
"""
