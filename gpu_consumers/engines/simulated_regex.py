"""The shortest text that a regular expression matches, of those whose matches need no search."""

import re
from collections.abc import Iterable
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, Final

_CANDIDATES: Final = "a0A _-.,:/!?+*=()[]{}<>@#$%&'\"\\;~^|`\té"
"""What may stand for anything, for a class or for all but some."""
MAX_STEPS: Final = 250_000
"""For one answer, so that nobody else waits for it longer than for some steps of the engine."""


class CannotSay(Exception):
    """In words for the client."""


class Steps:
    """How much may still be looked at: characters of expressions, what they are made of, and members of classes."""

    def __init__(self) -> None:
        self.left = MAX_STEPS

    def spend(self, count: int = 1) -> None:
        self.left -= count
        if self.left < 0:
            raise CannotSay("its expressions take too long")


def shortest_match(pattern: str, max_chars: int, steps: Steps) -> str:
    """Of the first branch everywhere. Raises CannotSay for what looks around or refers back, beyond `max_chars`, and
    where it takes more `steps` than are left.
    """
    steps.spend(len(pattern))
    try:
        tree = _parser.parse(pattern)
        text = _Text(max_chars, steps)
        text.write(tree)
    except (re.error, RecursionError, OverflowError):
        raise CannotSay("the expression cannot be read") from None
    return "".join(text.chars)


class _Text:
    def __init__(self, max_chars: int, steps: Steps) -> None:
        self.chars: list[str] = []
        self._max_chars = max_chars
        self._steps = steps
        self._of_class: dict[int, str] = {}
        self._is_over = False

    def write(self, tree: Iterable[tuple[Any, Any]]) -> None:
        """A tree of Python's own parser: pairs of an operation and its arguments."""
        for operation, arguments in tree:
            self._steps.spend()
            match operation:
                case op.LITERAL:
                    self._put(chr(arguments))
                case op.NOT_LITERAL | op.ANY:
                    self._put(_one_of([(operation, arguments)], self._steps))
                case op.IN:
                    if id(arguments) not in self._of_class:
                        self._of_class[id(arguments)] = _one_of(arguments, self._steps)
                    self._put(self._of_class[id(arguments)])
                case op.BRANCH:
                    self.write(arguments[1][0])
                case op.SUBPATTERN:
                    self.write(arguments[-1])
                case op.ATOMIC_GROUP:
                    self.write(arguments)
                case op.MAX_REPEAT | op.MIN_REPEAT | op.POSSESSIVE_REPEAT:
                    self._repeat(arguments[0], arguments[2])
                case op.AT:
                    self._stand_at(arguments)
                case _:
                    raise CannotSay("an expression that looks around or refers back is beyond this engine")

    def _put(self, char: str) -> None:
        if self._is_over or len(self.chars) >= self._max_chars or "\ud800" <= char <= "\udfff":
            raise CannotSay("the expression matches nothing, or nothing short")
        self.chars.append(char)

    def _repeat(self, times: int, tree: Iterable[tuple[Any, Any]]) -> None:
        for _ in range(times):
            before = len(self.chars)
            self.write(tree)
            if len(self.chars) == before:
                return

    def _stand_at(self, where: Any) -> None:
        if where in (op.AT_END, op.AT_END_STRING):
            self._is_over = True
        elif where not in (op.AT_BEGINNING, op.AT_BEGINNING_STRING) or self.chars:
            raise CannotSay("an expression that looks around is beyond this engine")


def _one_of(members: list[tuple[Any, Any]], steps: Steps) -> str:
    wanted = members[0][0] is not op.NEGATE
    for operation, arguments in members if wanted else ():
        if operation is op.LITERAL:
            return chr(arguments)
        if operation is op.RANGE:
            return chr(arguments[0])
    for char in _CANDIDATES:
        steps.spend(len(members))
        if any(_matches(char, *member) for member in members) is wanted:
            return char
    raise CannotSay("the expression has a class that this engine finds nothing in")


def _matches(char: str, operation: Any, arguments: Any) -> bool:
    match operation:
        case op.ANY:
            return True
        case op.LITERAL:
            return bool(ord(char) == arguments)
        case op.NOT_LITERAL:
            return bool(ord(char) != arguments)
        case op.RANGE:
            return bool(arguments[0] <= ord(char) <= arguments[1])
        case op.CATEGORY:
            return _is_of(char, arguments)
    return False


def _is_of(char: str, category: Any) -> bool:
    match category:
        case op.CATEGORY_DIGIT | op.CATEGORY_NOT_DIGIT:
            found = char.isdecimal()
        case op.CATEGORY_SPACE | op.CATEGORY_NOT_SPACE:
            found = char.isspace()
        case _:
            found = char.isalnum() or char == "_"
    return found is (category in (op.CATEGORY_DIGIT, op.CATEGORY_SPACE, op.CATEGORY_WORD))
