"""A policy small enough to learn on a laptop: tokenizer trained on the spot, Qwen3 architecture.

It speaks the same codec interface as any other policy, and nothing outside this file knows that it
is tiny.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from bat_agent.policy.line_codec import SPECIAL_TOKENS


class TinyModelConfig(BaseModel):
    """Shape of a policy that is made from nothing.

    The default initialisation range of the architecture is far too small for two narrow layers:
    with it the model never learns to copy.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden_size: int = Field(64, ge=8)
    layers: int = Field(2, ge=1)
    heads: int = Field(4, ge=1)
    kv_heads: int = Field(2, ge=1)
    intermediate_size: int = Field(192, ge=8)
    initializer_range: float = Field(0.1, gt=0)
    context_tokens: int = Field(4096, ge=256, description="Longest sequence, tokens.")
    vocab_lines: int = Field(
        1200, ge=0, description="Whole lines of each task that are one token, at most."
    )
    vocab_pieces: int = Field(500, ge=0, description="Sub-line pieces for each task, at most.")
    min_line_count: int = Field(3, ge=1, description="A line must occur this often to be a token.")
    shared_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of a task's instances that must hold a text which is only read.",
    )


@dataclass(frozen=True, slots=True)
class Sample:
    """A text of the tokenizer's corpus.

    Attributes:
        text: The text.
        instance: Names the task instance that it is about.
        written: Whether the policy writes it (a code cell) rather than reads it.
        task: Names the task; what is usual is counted within each.
    """

    text: str
    instance: str = ""
    written: bool = True
    task: str = ""


def train_tokenizer(samples: Iterable[Sample | str], config: TinyModelConfig | None = None) -> Any:
    """Train a lossless line tokenizer.

    Text is split at newlines only. A line that recurs becomes one token; other lines are spelled in
    byte-pair pieces learned from what the whole lines leave over, and finally in single bytes. The
    segmentation with the fewest tokens wins, so a known line is always one token.

    What is only read becomes a token if most instances of a task share it: names and numbers of
    single instances are spelled out in training just as they are on instances never seen, and the
    texts of a task take no more tokens because other tasks are learned beside it.

    Args:
        samples: Training-namespace texts: code cells, briefs, observations. A plain string is a
            written text.
        config: Vocabulary sizes.

    Returns:
        A ``PreTrainedTokenizerFast`` holding the special tokens of the line codec.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    config = config or TinyModelConfig()
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[^\n]*\n|[^\n]+"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )

    def as_bytes(text: str) -> str:
        return "".join(token for token, _ in split.pre_tokenize_str(text))

    corpus = [Sample(s) if isinstance(s, str) else s for s in samples]
    whole = _whole_lines(corpus, config)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [as_bytes(piece) for piece in _pieces(corpus, set(whole), alphabet, config)]
    # Scores make every further token costly, so the fewest tokens win.
    vocabulary = dict.fromkeys(pieces, -10.0) | {as_bytes(line): -9.0 for line in whole}
    vocabulary |= dict.fromkeys(alphabet, -12.0)
    ordered = sorted(vocabulary.items(), key=lambda item: (len(item[0]) > 1, item[0]))
    backend = Tokenizer(models.Unigram([(t, s) for t, s in ordered], unk_id=None))
    backend.pre_tokenizer = split
    backend.decoder = decoders.ByteLevel()
    make: Any = PreTrainedTokenizerFast
    return make(
        tokenizer_object=backend,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=list(SPECIAL_TOKENS[2:]),
        clean_up_tokenization_spaces=False,
        model_max_length=config.context_tokens,
    )


def _whole_lines(corpus: Sequence[Sample], config: TinyModelConfig) -> list[str]:
    """Lines that become one token: of each task the most frequent, without repeats."""
    tasks: defaultdict[str, list[Sample]] = defaultdict(list)
    for sample in corpus:
        tasks[sample.task].append(sample)
    found = (line for name in sorted(tasks) for line in _lines_of_task(tasks[name], config))
    return list(dict.fromkeys(found))


def _lines_of_task(corpus: Sequence[Sample], config: TinyModelConfig) -> list[str]:
    written: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    instances: defaultdict[str, set[str]] = defaultdict(set)
    for sample in corpus:
        lines = [line for line in sample.text.splitlines(keepends=True) if line.endswith("\n")]
        counts.update(lines)
        if sample.written:
            written.update(lines)
        for line in lines:
            instances[line].add(sample.instance)
    most = config.shared_share * len({s.instance for s in corpus})
    wanted = [
        line
        for line, n in counts.items()
        if written[line] >= config.min_line_count
        or (n >= config.min_line_count and len(instances[line]) >= most)
    ]
    # Ties broken by the text itself: the vocabulary must not depend on the order of the corpus.
    return sorted(wanted, key=lambda line: (-counts[line], line))[: config.vocab_lines]


def _pieces(
    corpus: Sequence[Sample], whole: set[str], alphabet: list[str], config: TinyModelConfig
) -> list[str]:
    """Parts of words, for the lines that are no token, that most instances of a task share."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    rest: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for sample in corpus:
        for line in sample.text.splitlines(keepends=True):
            if line not in whole:
                rest[sample.task, sample.instance].add(line)
    tasks = {task for task, _ in rest}
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d|[^\W\d]+|[^\w\n]+|\n"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + config.vocab_pieces * max(1, len(tasks)),
        initial_alphabet=alphabet,
        min_frequency=2,
        show_progress=False,
        limit_alphabet=len(alphabet),
    )
    bpe.train_from_iterator([line for name in sorted(rest) for line in sorted(rest[name])], trainer)
    texts: defaultdict[str, list[str]] = defaultdict(list)
    for (task, _), lines in rest.items():
        texts[task].append("".join(sorted(lines)))

    def usual(piece: str) -> bool:
        return any(
            sum(piece in text for text in some) >= config.shared_share * len(some)
            for some in texts.values()
        )

    found = [decoder.decode([token]) for token in sorted(bpe.get_vocab()) if len(token) > 1]
    return [piece for piece in found if "\ufffd" not in piece and usual(piece)]


def build_model(tokenizer: Any, config: TinyModelConfig | None = None, *, seed: int = 0) -> Any:
    """A freshly initialised causal language model over ``tokenizer``, in float32.

    Args:
        tokenizer: From :func:`train_tokenizer`.
        config: Shape of the network.
        seed: Seeds the initial weights; the global random state is left as it was.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = config or TinyModelConfig()
    head_dim = max(8, math.ceil(config.hidden_size / config.heads))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=len(tokenizer),
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                num_key_value_heads=config.kv_heads,
                head_dim=head_dim,
                max_position_embeddings=config.context_tokens,
                initializer_range=config.initializer_range,
                tie_word_embeddings=True,
                attention_dropout=0.0,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=tokenizer.eos_token_id,
                bos_token_id=None,
                dtype="float32",
            )
        )
    return model
