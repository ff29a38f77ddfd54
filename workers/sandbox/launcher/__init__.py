"""The program that runs other programs confined; ``supervise.main`` starts it.

It imports nothing outside this package but the standard library, and is started without
site-packages: a worker pays for its start at every verification.
"""
