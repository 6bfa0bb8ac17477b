"""The toy environment, its demonstrations, and a small cold-started policy, made once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import toy_chain
import toy_training

toy_chain.register()


@pytest.fixture(scope="session")
def toy_bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Stage Bank holding toy demonstrations."""
    return toy_training.make_bank(tmp_path_factory.mktemp("toy") / "bank")


@pytest.fixture(scope="session")
def toy_start(toy_bank: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mediocre cold start on the toy environment."""
    from bat_agent.sft import train_sft

    return train_sft(toy_bank, tmp_path_factory.mktemp("toy-sft"), toy_training.PRESET, seed=1)
