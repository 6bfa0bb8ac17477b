"""The agent: a conversation per episode, one tool call a turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from bat_agent.agents.base import AgentSource, ToolCall
from bat_agent.agents.chat.calls import Call, function_calls, text_calls, text_of
from bat_agent.agents.chat.config import ChatConfig, make_chat_config
from bat_agent.agents.chat.endpoint import Completion, Endpoint
from bat_agent.agents.chat.ledger import Spent
from bat_agent.agents.chat.transcript import Transcript
from bat_agent.agents.failures import ServiceError, StopEvaluation
from bat_agent.policy.hermes import hermes_system
from bat_env.completions import Refused
from bat_env.tools import openai_tools
from bat_env.trajectory import TokenRecord

SYSTEM: Final = (
    "You are a careful medical-imaging engineer. You work in a sandbox by calling tools, one call "
    "per turn. Cells share nothing but files. End with submit_results."
)


class ChatAgent:
    """A chat model that plays by tool calls.

    Args:
        endpoint: Of the model, shared by all episodes of an evaluation; ``None``: what
            BAT_CHAT_BASE_URL and BAT_CHAT_MODEL name.
    """

    def __init__(self, endpoint: Endpoint | None = None) -> None:
        self._endpoint = endpoint or Endpoint(make_chat_config({}))
        self._spent = Spent()
        self._waiting: deque[Call] = deque()
        self._played: Call | None = None
        self._brief = ""
        self._transcript: Transcript | None = None
        self._text = False
        self.record: TokenRecord | None = None

    @property
    def tokens(self) -> int:
        """Tokens that the model wrote in this episode."""
        return self._spent.completion_tokens

    @property
    def cost(self) -> float:
        """US dollars of this episode."""
        return self._spent.cost

    def reset(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> None:
        """Begin a conversation."""
        self._spent, self._waiting, self._played = Spent(), deque(), None
        self._brief = str(observation["text"])
        self._open()

    def act(self, observation: Mapping[str, Any]) -> ToolCall:
        """The model's next call; what is none is passed on, and costs the turn.

        Raises:
            ServiceError: If the endpoint gives no answer.
            StopEvaluation: If there is no point in going on.
        """
        transcript = self._open() if self._transcript is None else self._transcript
        if self._played is not None:
            transcript.result(self._told(self._played, str(observation["text"])))
        self.record = None
        if not self._waiting:
            self._ask()
        self._played = self._waiting.popleft()
        action: ToolCall = self._played.action
        return action

    def interrupt(self) -> None:
        """Wait for no further answer, in no episode; from any thread."""
        self._endpoint.interrupt()

    def _open(self) -> Transcript:
        config = self._endpoint.config
        self._text = self._endpoint.text_only
        system = hermes_system(openai_tools()) if self._text else SYSTEM
        room = config.context_tokens - config.max_tokens
        self._transcript = Transcript(system, self._brief, max(room, 1))
        return self._transcript

    def _told(self, call: Call, text: str) -> dict[str, Any]:
        if call.id:
            return {"role": "tool", "tool_call_id": call.id, "content": text}
        if self._text:
            text = f"<tool_response>\n{text}\n</tool_response>"
        return {"role": "user", "content": text}

    def _ask(self) -> None:
        assert self._transcript is not None
        completion = self._completion()
        self._transcript.measured(completion.answer.prompt_tokens)
        self._spent.add(completion.spent)
        message = completion.answer.message
        calls, kept = ([], []) if self._text else function_calls(message)
        text = text_of(message)
        # Models without function calling write their calls, whatever they were offered.
        calls = calls or text_calls(text) or [Call(text)]
        # Some servers refuse a conversation with an empty answer in it.
        said: dict[str, Any] = {"role": "assistant", "content": text if kept else text or "(empty)"}
        if kept:
            said["tool_calls"] = kept
        self._transcript.begin(said)
        self._waiting.extend(calls)
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        key = self._endpoint.config.api_key()
        self.record = TokenRecord(
            message=_without(text, key),
            reasoning=_without(reasoning, key) if isinstance(reasoning, str) else "",
            extra={
                "finish": completion.answer.finish,
                "prompt_tokens": completion.spent.prompt_tokens,
                "completion_tokens": completion.spent.completion_tokens,
                "cost": completion.spent.cost,
            },
        )

    def _completion(self) -> Completion:
        endpoint = self._endpoint
        for _ in range(4):
            assert self._transcript is not None
            transcript = self._transcript
            tools = None if self._text else openai_tools()
            try:
                return endpoint.ask(
                    transcript.messages(), tools=tools, prompt_tokens=transcript.tokens()
                )
            except Refused as refusal:
                if refusal.too_long:
                    transcript.room = int(0.7 * min(transcript.room, transcript.tokens()))
                elif transcript.started:
                    # The same form was taken before: it is about what is in this conversation.
                    raise ServiceError(
                        f"{endpoint.config.model}: the endpoint refuses the conversation "
                        f"({refusal})."
                    ) from None
                elif refusal.about_tools and not self._text and endpoint.config.tools == "auto":
                    endpoint.text_only = True
                    self._open()
                else:
                    raise StopEvaluation(
                        f"{endpoint.config.model}: the endpoint refuses the request ({refusal}). "
                        "Check model, base URL and body; the same command goes on."
                    ) from None
        raise StopEvaluation(
            f"{endpoint.config.model}: the conversation is too long for the server even when cut. "
            "Give a lower context_tokens."
        )


def _without(text: str, key: str | None) -> str:
    return text if key is None else text.replace(key, "(key)")


def chat_source(config: ChatConfig) -> AgentSource:
    """The agent for an evaluation: its episodes share rates, books and cost limit."""
    endpoint = Endpoint(config)
    return AgentSource(
        f"chat:{config.model}",
        make=lambda: ChatAgent(endpoint),
        settings=config.settings(),
        usage=endpoint.ledger.usage,
        restore=endpoint.ledger.restore,
    )
