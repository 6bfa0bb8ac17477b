"""TRL's SFT trainer, with the vocabulary projected at response positions only.

TRL's fused head does that by itself where Triton runs. Elsewhere it scores every position, which
costs a small model more than its own layers do.
"""

from __future__ import annotations

from typing import Any

import torch
from trl.trainer.sft_trainer import SFTTrainer


class ResponseTrainer(SFTTrainer):
    """See the module; everything but the loss on a CPU in one process is TRL's."""

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Mean negative log-likelihood of the response tokens of the optimiser step."""
        labels = inputs["labels"]
        if return_outputs or labels.device.type != "cpu" or self.args.world_size > 1:
            theirs: Any = super()
            return theirs.compute_loss(model, inputs, return_outputs, num_items_in_batch)
        whole = self.accelerator.unwrap_model(model)
        whole = whole.get_base_model() if hasattr(whole, "peft_config") else whole
        hidden = whole.base_model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            use_cache=False,
        ).last_hidden_state[:, :-1]
        targets = labels[:, 1:]
        scored = targets != -100
        logits = whole.get_output_embeddings()(hidden[scored])
        loss = torch.nn.functional.cross_entropy(logits.float(), targets[scored], reduction="sum")
        count = scored.sum() if num_items_in_batch is None else num_items_in_batch
        mode = "train" if model.training else "eval"
        right = (logits.detach().argmax(-1) == targets[scored]).float().mean().item()
        self._metrics[mode]["mean_token_accuracy"].append(right)
        return loss / torch.as_tensor(count).clamp(min=1)
