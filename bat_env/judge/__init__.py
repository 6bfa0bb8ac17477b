"""The optional LLM judge: reads what an agent explains, and can never replace host evidence.

Off by default and in the reference. It answers a few questions about prose of S1-S3 from frozen
copies of named files and the host's record of cells. It sees no metric, no truth and no verdict;
each answer cites a line that the host finds again, or counts for nothing.
"""

from __future__ import annotations

from bat_env.judge.config import JudgeConfig
from bat_env.judge.contract import JudgedContract, judged_contract
from bat_env.judge.judge import Judge, make_judge

__all__ = ["Judge", "JudgeConfig", "JudgedContract", "judged_contract", "make_judge"]
