"""Random faults against the real daemon, seeded, with invariants that an observer checks.

``python -m tests.chaos --minutes 30 --seed 1`` runs it; the same seed brings the same faults.
"""
