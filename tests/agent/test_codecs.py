"""Codecs: round trips, appending only, total parsing, and text that cannot inject tokens."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bat_agent.policy.codec import CODECS, Codec, make_codec
from bat_agent.policy.line_codec import SPECIAL_TOKENS, LineCodec
from bat_agent.policy.tiny import TinyModelConfig, train_tokenizer
from bat_env.errors import ConfigError, UnknownNameError

CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
CORPUS = [f"import os\nx = {i % 9}\nprint('héllo')\n" for i in range(60)]


@functools.cache
def chatml_tokenizer() -> Any:
    """A byte-level tokenizer with the added tokens of a Qwen-like chat model."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([*CORPUS, '{"name": "execute_code", "arguments": {}}'], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.add_tokens([AddedToken(t, special=t.startswith("<|")) for t in CHATML])
    return tokenizer


@functools.cache
def codec(name: str) -> Codec:
    if name == "line":
        return make_codec("line", train_tokenizer(CORPUS, TinyModelConfig(vocab_pieces=40)))
    return make_codec("hermes", chatml_tokenizer())


NAMES = st.sampled_from(sorted(CODECS))
# Text is spiced with the strings of added tokens, and with code points that are hard to encode.
TEXT = st.lists(
    st.one_of(
        st.sampled_from([*SPECIAL_TOKENS, *CHATML, "\n", "import os\n", "<|", "|>", "\x00", "é"]),
        st.text(max_size=8),
    ),
    max_size=12,
).map("".join)
CODE = TEXT.filter(lambda s: not any(0xD800 <= ord(c) < 0xE000 for c in s))
CALL = st.one_of(
    st.just({"name": "submit_results", "arguments": {}}),
    st.builds(
        lambda language, code: {
            "name": "execute_code",
            "arguments": {"language": language, "code": code},
        },
        st.sampled_from(["python", "bash"]),
        CODE,
    ),
)
FAST = settings(max_examples=150, deadline=None)


@given(NAMES, CALL)
@FAST
def test_an_action_reads_back_as_it_was(name: str, call: dict[str, Any]) -> None:
    ids = codec(name).action_ids(call)
    assert codec(name).parse(ids) == call
    assert ids[-1] == codec(name).stop_ids[0]
    assert ids[:-1].count(codec(name).stop_ids[0]) == 0


@given(NAMES, TEXT, TEXT)
@FAST
def test_text_never_makes_an_added_token(name: str, brief: str, observation: str) -> None:
    c = codec(name)
    added = set(c.tokenizer.added_tokens_decoder)
    info: dict[str, Any] = {}
    for make in (lambda t: c.prompt_ids({"stage": 2, "text": t}, info), c.observation_ids):
        frame = [i for i in make("") if i in added]
        for text in (brief, observation):
            assert [i for i in make(text) if i in added] == frame


@given(NAMES, st.lists(st.integers(0, 10_000), max_size=40))
@FAST
def test_parsing_never_fails(name: str, numbers: list[int]) -> None:
    c = codec(name)
    ids = [n % len(c.tokenizer) for n in numbers]
    action = c.parse(ids)
    assert isinstance(action, str) or set(action) == {"name", "arguments"}


@given(NAMES, st.lists(st.tuples(CALL, TEXT), min_size=1, max_size=3))
@FAST
def test_what_the_policy_reads_is_the_text(name: str, turns: list[tuple[Any, str]]) -> None:
    """Decoding the tokens of an observation gives the text back, inside its frame."""
    c = codec(name)
    for _, text in turns:
        text = text.encode("utf-8", "replace").decode()
        decoded = c.tokenizer.decode(c.observation_ids(text), clean_up_tokenization_spaces=False)
        assert text in decoded


def test_a_cut_or_mixed_action_is_raw_text() -> None:
    c = codec("line")
    call = {"name": "execute_code", "arguments": {"language": "python", "code": "import os"}}
    ids = c.action_ids(call)
    assert c.parse(ids[:-1]) == "<|py|>import os\n"
    assert isinstance(c.parse([ids[0], *ids]), str)
    assert isinstance(c.parse([]), str)
    h = codec("hermes")
    ids = h.action_ids(call)
    assert isinstance(h.parse(ids[:-1]), str)
    thought = h.tokenizer.encode("I think. ", add_special_tokens=False)
    assert h.parse([*thought, *ids]) == call
    assert isinstance(h.parse([*ids[:-1], *ids]), str)


def test_hermes_prompt_is_chatml_with_the_tools() -> None:
    h = codec("hermes")
    text = h.tokenizer.decode(h.prompt_ids({"stage": 5, "text": "Do it."}, {}))
    assert text.startswith("<|im_start|>system\n")
    assert '"execute_code"' in text and '"submit_results"' in text
    assert text.endswith("<|im_start|>user\nDo it.<|im_end|>\n<|im_start|>assistant\n")


def test_lines_that_recur_are_single_tokens() -> None:
    tokenizer = codec("line").tokenizer
    assert len(tokenizer.encode("import os\nprint('héllo')\n", add_special_tokens=False)) == 2
    assert tokenizer.decode(tokenizer.encode("never seen → ok")) == "never seen → ok"


def test_the_tokenizer_does_not_depend_on_the_order_of_the_corpus() -> None:
    a, b = train_tokenizer(CORPUS), train_tokenizer(CORPUS[::-1])
    assert a.get_vocab() == b.get_vocab()


def test_wrong_names_and_tokenizers_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'hermes'"):
        make_codec("hermse", None)
    with pytest.raises(ConfigError, match="special tokens"):
        LineCodec(chatml_tokenizer())
    with pytest.raises(ConfigError, match="ChatML"):
        make_codec("hermes", codec("line").tokenizer)


def test_names_of_single_instances_are_spelled_out() -> None:
    """Names of the training namespace must not be easier to read than names never seen."""
    from bat_agent.policy.tiny import Sample

    briefs = [
        Sample(f"Cases:\n- {name}-1\nGo on.\n", name, written=False)
        for name in ("KLMN", "OPQR", "STUV", "WXYZ")
        for _ in range(9)
    ]
    tokenizer = train_tokenizer([*briefs, *(Sample("run('KLMN')\n", "KLMN") for _ in range(5))])

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    assert count("Cases:\n") == count("Go on.\n") == count("run('KLMN')\n") == 1
    assert count("- KLMN-1\n") == count("- ABCD-1\n") > 3
