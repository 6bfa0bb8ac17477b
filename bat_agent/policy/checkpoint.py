"""Checkpoints: a ``save_pretrained`` folder with a seal that says it is whole.

``bat.json`` is written last and holds a digest of every other file. A folder without it, or that
does not match it, is refused by name, never half-used.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bat_agent.policy.codec import Codec, make_codec
from bat_agent.policy.limits import TokenLimits
from bat_env.errors import CheckpointError

SCHEMA_VERSION: Final = 1
SEAL: Final = "bat.json"


@dataclass(slots=True)
class Policy:
    """A model that can act.

    Attributes:
        model: Causal language model, on its device.
        tokenizer: Its tokenizer.
        codec: How episodes read in its tokens.
        meta: The checkpoint's seal.
        path: Where it was loaded from.
    """

    model: Any
    tokenizer: Any
    codec: Codec
    meta: Mapping[str, Any]
    path: Path

    @property
    def digest(self) -> str:
        """Digest of the checkpoint."""
        return str(self.meta["digest"])

    @property
    def limits(self) -> TokenLimits:
        """Token budgets that the policy was trained with (:class:`TokenLimits`)."""
        limits = self.meta["limits"]
        return TokenLimits(
            turn=limits["max_turn_tokens"],
            completion=limits["max_completion_tokens"],
            prompt=limits["max_prompt_tokens"],
        )

    def sampler(self) -> Any:
        """A new :class:`~bat_agent.policy.sampling.ModelSampler` over this model."""
        from bat_agent.policy.sampling import ModelSampler

        return ModelSampler(self.model, self.codec.stop_ids, self.codec.pad_id)


def save_checkpoint(
    path: str | Path,
    write: Callable[[Path], None],
    *,
    codec: str,
    limits: Mapping[str, int],
    parent: str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write a checkpoint folder atomically: it appears whole or not at all.

    Args:
        path: Final folder; must not hold a checkpoint yet.
        write: Fills a given empty folder (weights, tokenizer, ...).
        codec: Name of the codec.
        limits: ``max_turn_tokens``, ``max_completion_tokens``, ``max_prompt_tokens``.
        parent: Digest of the checkpoint this one was trained from.
        extra: Further facts for ``bat.json``.

    Returns:
        ``path``.
    """
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    part = final.with_name(f".{final.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    write(part)
    seal(part, codec=codec, limits=limits, parent=parent, extra=extra)
    old = final.with_name(f".{final.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.replace(old)
    part.replace(final)
    shutil.rmtree(old, ignore_errors=True)
    return final


def seal(
    folder: Path,
    *,
    codec: str,
    limits: Mapping[str, int],
    parent: str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write ``bat.json`` into a folder whose other files are final; returns its content."""
    files = {p: _sha256(folder / p) for p in _files(folder)}
    meta: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "codec": codec,
        "limits": dict(limits),
        "parent": parent,
        "weights_digest": _digest({p: d for p, d in files.items() if _is_weights(p)}),
        "digest": _digest(files),
        "files": files,
        **(extra or {}),
    }
    part = folder / f".{SEAL}.part"
    part.write_text(json.dumps(meta, indent=1, sort_keys=True), encoding="utf-8")
    part.replace(folder / SEAL)
    return meta


def read_seal(path: str | Path, *, verify: bool = True) -> dict[str, Any]:
    """Read and check ``bat.json``.

    Raises:
        CheckpointError: If the folder is missing, incomplete or does not match its digests.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(f"Expected a checkpoint folder at {folder}; there is none.")
    try:
        meta = json.loads((folder / SEAL).read_text(encoding="utf-8"))
        files = dict(meta["files"])
        version = meta["schema_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"Checkpoint {folder} has no readable {SEAL} ({type(error).__name__}): it was never "
            "finished, or is not a checkpoint of this project. Delete it and train again."
        ) from error
    if version != SCHEMA_VERSION:
        raise CheckpointError(
            f"Checkpoint {folder} has schema version {version!r}, this release reads "
            f"{SCHEMA_VERSION}. Train it again or use the release that wrote it."
        )
    if verify:
        for name, digest in files.items():
            there = folder / name
            if not there.is_file():
                raise CheckpointError(f"Checkpoint {folder} is incomplete: {name} is missing.")
            if _sha256(there) != digest:
                raise CheckpointError(f"Checkpoint {folder} is corrupt: {name} has changed.")
    return dict(meta)


def is_whole(path: str | Path) -> bool:
    """Whether ``path`` is a complete checkpoint."""
    try:
        read_seal(path)
    except CheckpointError:
        return False
    return True


def load_policy(path: str | Path, device: str = "cpu", *, trainable: bool = False) -> Policy:
    """Load a checkpoint.

    Args:
        path: The folder.
        device: Where the model goes.
        trainable: Whether adapters are loaded for training.

    Raises:
        CheckpointError: If it is missing, incomplete, corrupt, or cannot be loaded.
    """
    folder = Path(path)
    meta = read_seal(folder)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model: Any
        if (folder / "adapter_config.json").is_file():
            from peft import PeftModel

            base = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
            model = AutoModelForCausalLM.from_pretrained(
                base["base_model_name_or_path"], dtype=meta.get("dtype", "auto")
            )
            model = PeftModel.from_pretrained(model, folder, is_trainable=trainable)
        else:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=meta.get("dtype", "auto"))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise CheckpointError(
            f"Checkpoint {folder} matches its digests but cannot be loaded "
            f"({type(error).__name__}: {error}). Check the installed transformers version."
        ) from error
    model.eval()
    codec = make_codec(str(meta["codec"]), tokenizer)
    return Policy(model.to(device), tokenizer, codec, meta, folder)


def _files(folder: Path) -> list[str]:
    found = (p for p in folder.rglob("*") if p.is_file())
    names = (p.relative_to(folder).as_posix() for p in found)
    return sorted(n for n in names if n != SEAL and not n.startswith(f".{SEAL}"))


def _is_weights(name: str) -> bool:
    return name.endswith(".safetensors")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(files: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
