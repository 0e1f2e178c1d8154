"""Measures a small chat model on questions that are not in its training text, and prints a table.

    python models/evaluate.py models/sluice-tiny

Every question is worded in a way that `models/corpus` never generates (a test holds that), so the figures say how far
the model carries over, not how well it remembers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from models.corpus import Conversation, Message
from models.held_out import HELD_OUT
from models.held_out.questions import Answer, Question
from models.prompts import as_requested
from streams.chat_tokenizer import ChatTokenizer


class ChatModel(Protocol):
    """Whatever can answer a conversation."""

    def answer(self, asked: Conversation, max_tokens: int, temperature: float, seed: int) -> Answer:
        """One answer; greedy at temperature 0."""


class TransformersModel:
    """The model as transformers runs it, on the CPU in float32; its prompts are the gateway's."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import LlamaForCausalLM

        torch.set_num_threads(1)  # so small a model gains nothing from a second one
        self._torch = torch
        self._tokenizer = ChatTokenizer(folder)
        self._model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def answer(self, asked: Conversation, max_tokens: int, temperature: float, seed: int) -> Answer:
        """One answer; greedy at temperature 0."""
        messages, tools = as_requested(asked)
        prompt = self._torch.tensor([self._tokenizer.encode_chat(messages, tools=tools)])
        sampling: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        if temperature > 0:
            sampling = {"do_sample": True, "temperature": temperature}
        self._torch.manual_seed(seed)
        with self._torch.inference_mode():
            output = self._model.generate(
                input_ids=prompt,
                attention_mask=self._torch.ones_like(prompt),
                max_new_tokens=max_tokens,
                **sampling,
            )
        generated = output[0, prompt.shape[1] :].tolist()
        stopped = generated[-1] == self._model.generation_config.eos_token_id
        return Answer(text=self._tokenizer.decode(generated), tokens=len(generated), stopped=stopped)


@dataclass(frozen=True, slots=True)
class Score:
    """How many answers of one topic passed."""

    topic: str
    temperature: float
    passed: int
    asked: int
    failures: tuple[tuple[str, str], ...]
    """The questions of a conversation, and the last answer, of those that did not pass."""


def evaluate(
    model: ChatModel,
    topics: Mapping[str, Sequence[Question]],
    temperature: float,
    repeats: int,
    max_tokens: int = 700,
) -> list[Score]:
    """Asks every question `repeats` times, with the seeds 0, 1, ..."""
    scores = []
    for topic, questions in topics.items():
        failures = []
        for question in questions:
            for seed in range(repeats):
                said = _said(model, question, max_tokens, temperature, seed)
                if not question.passes(said[-1]) or said[-1] in said[:-1]:
                    failures.append((" / ".join((*question.before, question.ask)), said[-1].text))
        asked = len(questions) * repeats
        scores.append(Score(topic, temperature, asked - len(failures), asked, tuple(failures)))
    return scores


def _said(model: ChatModel, question: Question, max_tokens: int, temperature: float, seed: int) -> list[Answer]:
    """The answers of one conversation; the question's own is the last."""
    messages = [Message("system", question.system)] if question.system else []
    said: list[Answer] = []
    for ask in (*question.before, question.ask):
        messages.append(Message("user", ask))
        if question.called and ask == question.ask:
            messages.append(Message("assistant", "", question.called))
            messages += (Message("tool", result) for result in question.results)
        said.append(model.answer(Conversation(tuple(messages), question.tools), max_tokens, temperature, seed))
        messages.append(Message("assistant", said[-1].text))
    return said


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path, help="the model's folder")
    parser.add_argument("--topic", action="append", choices=sorted(HELD_OUT), help="of these alone")
    parser.add_argument("--repeats", type=int, default=3, help="how often each question is asked at temperature 0.7")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--failures", action="store_true", help="print each answer that did not pass")
    arguments = parser.parse_args()
    model = TransformersModel(arguments.model)
    topics = {topic: HELD_OUT[topic] for topic in arguments.topic or HELD_OUT}
    greedy = evaluate(model, topics, temperature=0.0, repeats=1)
    sampled = evaluate(model, topics, temperature=0.7, repeats=arguments.repeats)
    if arguments.json:
        print(json.dumps([asdict(score) for score in (*greedy, *sampled)], indent=2, ensure_ascii=False))
        return
    print("| topic | greedy | temperature 0.7 |")
    print("|---|---|---|")
    for cold, warm in zip(greedy, sampled, strict=True):
        print(f"| {cold.topic} | {cold.passed}/{cold.asked} | {warm.passed}/{warm.asked} |")
    if arguments.failures:
        for score in (*greedy, *sampled):
            for ask, text in score.failures:
                print(f"\n[{score.topic}, temperature {score.temperature}] {ask}\n  -> {text}")


if __name__ == "__main__":
    main()
