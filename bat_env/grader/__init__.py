"""Grading of hostile files in a separate, limited, warm process.

The host never parses what an agent wrote: it sends bytes to a confined child and believes bounded
JSON. A file that breaks the parser scores 0 for its case; a broken server is a
:class:`~bat_env.errors.GraderError`, and the score is null.
"""

from __future__ import annotations

from bat_env.grader.grader import Grader, shared_grader

__all__ = ["Grader", "shared_grader"]
