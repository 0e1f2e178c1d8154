"""An answer's token ids, folded into rows: their text, then stop strings, then what a parser makes of it.

Pure: the same ids with the same end give the same rows, however they are cut into steps. Whoever goes on with an
answer that another worker began folds all its ids anew, and publishes what lies beyond the tokens that were accepted.
"""

from collections import deque
from collections.abc import Callable, Sequence

from gpu_consumers.parsing.bounds import CallBounds
from gpu_consumers.parsing.port import TokenParser
from gpu_consumers.parsing.rows import Row, RowCutter
from gpu_consumers.parsing.stops import StopSearch, TextToken
from schemas.generated import FinishReason, StoppedBy
from schemas.logprobs import RowLogprobs, TokenLogprobs
from schemas.request import Sampling


class Fold:
    """Of one choice. `text_of` gives the text that each token adds, asked once for each and in order: whole characters.

    The engine gives ids alone, of tokens that it generated without stop strings: those are sought here, so the fold may
    end an answer before the engine does (`is_over`). So it does, as `length`, where an answer exceeds `CallBounds`.
    What stops within a call, by a string or by a token, ends as `length` too: with `stop`, clients would make that
    call.

    Probabilities go with their tokens, in rows of content alone. What stands before it and is not said (markers), and
    the token that ends an answer and is not shown, are in rows of their own, which have none.
    """

    def __init__(self, text_of: Callable[[int], str], parser: TokenParser, sampling: Sampling) -> None:
        self._text_of = text_of
        self._parser = parser
        self._shows_stop = sampling.include_stop_str_in_output
        self._stops = (
            StopSearch(sampling.stop, min_tokens=sampling.min_tokens, shows=self._shows_stop) if sampling.stop else None
        )
        self._stop_token_ids = sampling.stop_token_ids
        self._bounds = CallBounds()
        self._cutter = RowCutter()
        self._asks_logprobs = sampling.logprobs is not None
        # Of the tokens that are in no row yet: their probabilities, and what their text adds.
        self._logprobs: deque[TokenLogprobs] = deque()
        self._texts: deque[str] = deque()
        self.is_over = False

    def feed(
        self,
        token_ids: Sequence[int],
        finish: FinishReason = "",
        *,
        by_token: bool = False,
        logprobs: RowLogprobs = None,
    ) -> list[Row]:
        """The tokens of the next step, and whether the answer ends with them; `by_token`: the last one made it end.

        What an answer says behind its end counts as not said: neither those tokens nor any that are fed later.
        """
        if self.is_over:
            return []
        hides_last = by_token and not self._shows_stop
        if logprobs is not None:
            self._logprobs.extend(logprobs[:-1] if hides_last else logprobs)
        certain, finish = self._certain(token_ids, finish, hides_last=hides_last)
        rows: list[Row] = []
        last = len(certain) - 1 if finish else -1
        for index, (token_id, text) in enumerate(certain):
            pieces = self._parser.feed(token_id, text, is_last=index == last)
            rows += self._cutter.take(token_id, self._bounds.within(text, pieces))
            if self._bounds.exceeded:
                finish = "length"
                break
        if finish:
            if self._bounds.are_within_call or self._cutter.owes_call:
                finish = "length"
            self._cutter.end(rows, finish)
            self.is_over = True
        if self._asks_logprobs:
            self._texts.extend(text for _, text in certain)
            rows = [part for row in rows for part in self._with_logprobs(row)]
        if finish == "stop":
            rows[-1].stopped_by = self._stopped_by(token_ids[-1] if by_token else None)
        return rows

    def _stopped_by(self, last_token_id: int | None) -> StoppedBy:
        if self._stops is not None and self._stops.found:
            return self._stops.found
        return last_token_id if last_token_id in self._stop_token_ids else None

    def _with_logprobs(self, row: Row) -> list[Row]:
        """What stands before it and is not said, what is, and the end that is not shown."""
        texts = [self._texts.popleft() for _ in row.token_ids]
        logprobs = [self._logprobs.popleft() for _ in row.token_ids[: len(self._logprobs)]]
        begin = _unsaid(texts, row.text)
        if row.kind != "content" or begin >= len(logprobs):
            return [row]
        before, row = row.cut(begin)
        said, behind = row.cut(len(logprobs) - begin)
        said.logprobs = logprobs[begin:]
        return [part for part in (before, said, behind) if part.token_ids]

    def _certain(
        self, token_ids: Sequence[int], finish: FinishReason, *, hides_last: bool
    ) -> tuple[list[TextToken], FinishReason]:
        """The tokens whose text is certain by now, and how the answer ends with them."""
        shown = len(token_ids) - 1 if hides_last else len(token_ids)
        tokens = [
            TextToken(token_id, self._text_of(token_id) if index < shown else "")
            for index, token_id in enumerate(token_ids)
        ]
        if self._stops is None:
            return tokens, finish
        certain: list[TextToken] = []
        for token_id, text in tokens:
            certain += self._stops.take(token_id, text)
            if self._stops.found:
                return certain, "stop"
        if finish:
            certain += self._stops.rest()
        return certain, finish


def _unsaid(texts: Sequence[str], said: str) -> int:
    """How many of the tokens with these texts stand before what is said of them."""
    added = "".join(texts)
    left = len(added) - len(said) if added.endswith(said) else 0
    count = 0
    while left > 0 and len(texts[count]) <= left:
        left -= len(texts[count])
        count += 1
    return count
