"""Measuring speed: suites of shapes, timers, peers, a read-only probe, and the report of a run.

Nothing here is imported by the operations; `portagemm bench` is the front.
"""
