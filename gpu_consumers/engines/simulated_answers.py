"""One answer of the simulated engine, token by token: what the story says, as far as its request permits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpu_consumers.engines.beyond import Beyond
from gpu_consumers.engines.folding import as_deltas
from gpu_consumers.engines.port import EngineDelta
from gpu_consumers.engines.simulated_logprobs import Likelihoods
from gpu_consumers.engines.simulated_text import (
    EOS_TEXT,
    EOS_TOKEN_ID,
    Passage,
    Rules,
    StopStrings,
    TokenColumns,
    Vocabulary,
)
from gpu_consumers.parsing.fold import Fold
from schemas.generated import FinishReason
from schemas.request import Sampling

_MAX_LEFT_OUT: Final = 512
"""Forbidden tokens passed over in search of one that may be said."""


class OtherAnswer(Exception):
    """What is to be continued was begun by an engine of other settings."""


@dataclass(slots=True, eq=False)
class Answer:
    """To one choice of a request. `produced` tokens of it are said; it ends with `target_tokens`, or before."""

    request_id: str
    choice: int
    sampling: Sampling
    vocabulary: Vocabulary
    words: Iterator[Passage]
    target_tokens: int
    finish_at_target: FinishReason
    rules: Rules | None
    fold: Fold | None
    stops: StopStrings | None
    likelihoods: Likelihoods | None
    produced: int = 0
    passage: Passage = field(default_factory=lambda: Passage([], []))
    position: int = 0
    last_token_id: int = 0
    beyond: Beyond | None = None
    """While the answer is continued, and what was accepted of it is not all passed by."""
    is_plain: bool = field(init=False)
    """Nothing is looked at but the story, until the answer ends by itself. Asked for each token, so kept at hand."""

    def __post_init__(self) -> None:
        bare = self.rules is None and self.fold is None and self.stops is None and self.likelihoods is None
        self.is_plain = bare and not self.sampling.stop_token_ids

    def next_token(self) -> TokenColumns:
        """Of the story."""
        position = self.position
        passage = self.passage
        if position == len(passage.tokens):
            passage = self.passage = next(self.words)
            position = 0
        self.position = position + 1
        return passage.tokens[position]

    def pass_by(self, token_ids: Sequence[int], chars: int) -> list[EngineDelta]:
        """Goes on behind these tokens, of whose text so much is known. Returns its end, if it ends with them. Raises
        OtherAnswer where it would not have said them.
        """
        beyond = Beyond(len(token_ids), chars)
        news: list[EngineDelta] = []
        for token_id in token_ids:
            self.produced += 1
            said: list[EngineDelta] = []
            self._said(self.finish_due, 0, said)
            if news or self.last_token_id != token_id:
                raise OtherAnswer
            news += beyond.among(said)
        if not beyond.is_reached:
            self.beyond, self.is_plain = beyond, False
        return news

    @property
    def finish_due(self) -> FinishReason:
        """How it ends with the token that is produced last, whatever that is."""
        return self.finish_at_target if self.produced >= self.target_tokens else ""

    def say(self, finish: FinishReason, cached_tokens: int, deltas: list[EngineDelta]) -> FinishReason:
        """Adds what comes of the next token, which is in `produced`, and returns how the answer ends with it. `finish`:
        how it ends in any case.
        """
        beyond = self.beyond
        if beyond is None:
            return self._said(finish, cached_tokens, deltas)
        said: list[EngineDelta] = []
        finish = self._said(finish, cached_tokens, said)
        deltas += beyond.among(said)
        if beyond.is_reached:
            self.beyond = None
        return finish

    def _said(self, finish: FinishReason, cached_tokens: int, deltas: list[EngineDelta]) -> FinishReason:
        token_id, text, finish = self._by_the_rules(finish)
        self.last_token_id = token_id
        sampling = self.sampling
        ends_it = token_id == EOS_TOKEN_ID or token_id in sampling.stop_token_ids
        by_token = ends_it and finish == "stop"
        hides = by_token and not sampling.include_stop_str_in_output
        logprobs = None if self.likelihoods is None else [self.likelihoods.of(self.produced, token_id)]
        if self.fold is not None:
            rows = self.fold.feed([token_id], finish, by_token=by_token, logprobs=logprobs)
            deltas += as_deltas(self.request_id, self.choice, rows, cached_tokens)
            return rows[-1].finish if self.fold.is_over else ""
        if hides:
            text, logprobs = "", None
        if self.stops is not None:
            text, finish = self.stops.withhold(text, finish, may_stop=self.produced > sampling.min_tokens)
        delta = EngineDelta(self.request_id, self.choice, [token_id], text, [len(text)], finish, cached_tokens)
        delta.logprobs = logprobs
        if finish == "stop":
            is_own = token_id in sampling.stop_token_ids
            delta.stopped_by = (self.stops and self.stops.found) or (token_id if is_own else None)
        deltas.append(delta)
        return finish

    def _by_the_rules(self, finish: FinishReason) -> tuple[int, str, FinishReason]:
        """The next token, its text and what it ends, for requests that limit their text, and for every last token."""
        sampling = self.sampling
        if finish == "stop":
            token_id, text = EOS_TOKEN_ID, "" if sampling.skip_special_tokens else EOS_TEXT
        elif self.rules is None:
            [token_id], text, _ = self.next_token()
        else:
            token_id, text = self._next_permitted(self.rules)
            ends = token_id == EOS_TOKEN_ID or (self.produced >= sampling.min_tokens and self.rules.repeats_itself())
            finish = "stop" if ends else finish
        if token_id in sampling.stop_token_ids and self.produced > sampling.min_tokens:
            finish = "stop"
        return token_id, text, finish

    def _next_permitted(self, rules: Rules) -> tuple[int, str]:
        """The story without what the request forbids; ends it when nothing is left that may be said."""
        for _ in range(_MAX_LEFT_OUT):
            [token_id], text, _ = self.next_token()
            if rules.permits(token_id):
                rules.tell(token_id)
                return token_id, text
            while token_id < EOS_TOKEN_ID and not text:
                # The rest of a character whose first bytes are not said.
                [token_id], text, _ = self.next_token()
        other = rules.any_permitted()
        if other is None or (other == EOS_TOKEN_ID and self.sampling.ignore_eos):
            return EOS_TOKEN_ID, ""
        rules.tell(other)
        return other, self.vocabulary.decode([other])
