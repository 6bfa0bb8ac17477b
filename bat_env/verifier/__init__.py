"""The verifier: evidence that needs a sandbox or the grader, appended to the episode at hand-in.

It reads back what the agent wrote, has it graded, and re-runs ``pipeline/predict.py`` in a clean
sandbox: on an unseen case, and on one random case of the batch under another name. What the agent
broke is evidence against it; what infrastructure broke is noted as lost, and its items are null.
"""

from __future__ import annotations

from bat_env.verifier.clean import CleanRunner, Lease, Pool, alias, drawn_cases
from bat_env.verifier.gather import Verifier

__all__ = ["CleanRunner", "Lease", "Pool", "Verifier", "alias", "drawn_cases"]
