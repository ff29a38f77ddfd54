"""The program that runs other programs confined; ``supervise.main`` starts it.

It is started without site-packages and imports nothing outside this package but built-in modules
and ``ctypes``: a worker pays for its start at every verification, and ``json``, ``signal``,
``contextlib`` and ``typing`` would more than double it.
"""
