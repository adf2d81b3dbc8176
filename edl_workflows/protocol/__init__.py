"""Messages between a job's master, its agents and the Brain (HTTP + JSON), and what is needed to read them.
No I/O.
"""
