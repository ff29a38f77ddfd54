"""Real processes and servers are killed and frozen, and the invariants of the ledger must hold.

`python -m chaos` (or `make chaos SECONDS=…`) does it at random for a given time.
"""
