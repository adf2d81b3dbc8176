"""The simulator's schedulers: their contract and live policies (`scheduler`), those that exist only here, and
the registry of all (`catalog`).
"""
