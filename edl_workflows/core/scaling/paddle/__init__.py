"""Paddle EDL's fulfilment algorithm: how many instances each elastic job of a cluster gets.

- `fulfilment`: the algorithm; `jobs`: its view of jobs; `nodes`: the free capacity of nodes.
"""
