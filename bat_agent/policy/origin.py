"""Whether the model that training starts from can be loaded, before anything is done for it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from bat_env.errors import ConfigError

WEIGHTS: Final = ("model.safetensors", "pytorch_model.bin")
HUB_TIMEOUT_S: Final = 20.0


def check_origin(name: str) -> None:
    """Check configuration, tokenizer and weights of a base model, without loading the weights.

    Args:
        name: Model folder or hub id. A hub id is looked up in the local cache, then on the hub
            unless ``HF_HUB_OFFLINE`` forbids it.

    Raises:
        ConfigError: If it cannot be loaded; the message says what to do.
    """
    from transformers import AutoConfig, AutoTokenizer

    try:
        AutoConfig.from_pretrained(name)
        AutoTokenizer.from_pretrained(name)
        lacking = _lacking(name)
        if lacking and not Path(name).is_dir():
            # Not in the cache: training would download it, so the hub must know it.
            from huggingface_hub import HfApi

            HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
            lacking = ""
    except Exception as error:
        # Whatever a model's files make the library raise, the model is what cannot be used.
        reason = str(error).strip().splitlines()
        raise _missing(name, reason[0] if reason else type(error).__name__) from error
    if lacking:
        raise _missing(name, f"{lacking} is missing")


def _lacking(name: str) -> str:
    """The first file of weights that is not on this machine, or ``""``."""
    for single in WEIGHTS:
        if _local(name, single) is not None:
            return ""
        index = _local(name, f"{single}.index.json")
        if index is not None:
            shards: Iterable[str] = json.loads(index.read_text(encoding="utf-8"))[
                "weight_map"
            ].values()
            return next((s for s in sorted(set(shards)) if _local(name, s) is None), "")
    return WEIGHTS[0]


def _local(name: str, file: str) -> Path | None:
    if Path(name).is_dir():
        there = Path(name) / file
        return there if there.is_file() else None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, file)
    return Path(found) if isinstance(found, str) else None


def _missing(name: str, reason: str) -> ConfigError:
    return ConfigError(
        f"The base model {name!r} cannot be loaded ({reason}). Download it first "
        f"(`hf download {name}`), set HF_HOME to the cache that holds it, or write its folder into "
        "model.pretrained of a preset file and give that with --preset."
    )
