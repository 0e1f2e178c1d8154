"""A history in a folder: `answers.jsonl` and `jobs.jsonl` (what clients saw), `log.jsonl.gz` (what Kafka holds),
`bills.jsonl` (what was billed), `hours.jsonl` (and what is told of hours), `invoices.jsonl` and `ledger.jsonl` (what
tenants would be invoiced, and what stands in their ledgers), `held.jsonl` (what quota still held),
`engine.json` (the arguments of the simulated engine, where it was that), `stack.json` (prices, until when Redis may
have lost what it knew, whom no other model may answer).
"""

import gzip
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.history.bills import Prices
from tests.history.check import Verdict, check
from tests.history.log import Log, Logged
from tests.history.saw import Answer, Held, Job, read_lines, write_lines
from tests.history.undisturbed import Alone

_FAST = 1


@dataclass(frozen=True)
class History:
    """A folder, which `keep` fills and `verdict` reads."""

    folder: Path

    def keep(
        self,
        answers: Sequence[Answer],
        jobs: Sequence[Job],
        log: Iterable[Logged],
        bills: Iterable[Mapping[str, Any]],
        engine_args: Mapping[str, Any] | None,
        *,
        prices: Prices | None = None,
        hours: Iterable[Mapping[str, Any]] | None = None,
        invoices: Iterable[Mapping[str, Any]] | None = None,
        ledger: Iterable[Mapping[str, Any]] | None = None,
        held: Iterable[Held] = (),
        memory_lost_at_ms: int = 0,
        own_model_only: Sequence[str] = (),
    ) -> None:
        """`engine_args` None: it was another engine than the simulated one. The rest as in `check`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_lines(self.folder / "answers.jsonl", answers)
        write_lines(self.folder / "jobs.jsonl", jobs)
        write_lines(self.folder / "held.jsonl", held)
        with gzip.open(self.folder / "log.jsonl.gz", "wt", compresslevel=_FAST, encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in log)
        (self.folder / "engine.json").write_text(json.dumps(engine_args))
        stack = {"prices": prices, "memory_lost_at_ms": memory_lost_at_ms, "own_model_only": own_model_only}
        (self.folder / "stack.json").write_text(json.dumps(stack))
        for name, rows in (("bills", bills), ("hours", hours), ("invoices", invoices), ("ledger", ledger)):
            if rows is not None:
                (self.folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def log(self) -> Log:
        log = Log()
        for record in self._logged():
            log.take(record)
        return log

    def _logged(self) -> Iterator[Logged]:
        with gzip.open(self.folder / "log.jsonl.gz", "rt", encoding="utf-8") as file:
            for line in file:
                yield Logged(*json.loads(line))

    def verdict(self, log: Log | None = None, endings: Collection[str] | None = None) -> Verdict:
        """`log`: if it was read already. Raises OSError where a file is missing, ValueError where one is broken."""
        bills = map(json.loads, (self.folder / "bills.jsonl").read_bytes().splitlines())
        engine_args = json.loads((self.folder / "engine.json").read_bytes())
        stack = json.loads((self.folder / "stack.json").read_bytes())
        return check(
            read_lines(self.folder / "answers.jsonl", Answer),
            read_lines(self.folder / "jobs.jsonl", Job),
            self.log() if log is None else log,
            bills,
            None if engine_args is None else Alone(engine_args),
            endings=endings,
            hours=self._told("hours"),
            invoices=self._told("invoices"),
            ledger=self._told("ledger") or (),
            held=read_lines(self.folder / "held.jsonl", Held),
            **stack,
        )

    def _told(self, name: str) -> list[Any] | None:
        """None: nobody read that."""
        file = self.folder / f"{name}.jsonl"
        return [*map(json.loads, file.read_bytes().splitlines())] if file.exists() else None
