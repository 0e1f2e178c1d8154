"""The numbers of events: made of the numbers of tokens, so that every viewer gives the same event the same number.

How tokens are grouped into events differs between viewers and replays; which token opens or closes an item does not.
Each token has `SLOT` numbers, from `token * SLOT` on:

| offset | event |
|---|---|
| 0, 1, 2 | what ends the item before this token |
| 3, 4 | what begins the item that this token is of |
| 5 | the delta whose last token this is |
| 7 | `error`: the viewer is given up, and has seen all up to this token |

A token without text is of no item, unless it is of a call's name. Token 0 is none: in its place stand
`response.created` (0), `.queued` (1) and `.in_progress` (2), the `error` of who is given up before any item (3), and
what begins the one empty item of an answer that says nothing (4, 5). The terminal's number is the last token's plus
one: there stand the end of the last item (0, 1, 2) and the event that ends the response (5).

So numbers increase strictly within a stream, with holes. Whoever saw the number N has seen all tokens up to `seen(N)`
and, of what stands at fixed numbers, all up to N: the rest is every later token, and every such event above N.
"""

SLOT = 8
CREATED, QUEUED, IN_PROGRESS, GIVEN_UP_FIRST, OPENING_NOTHING = 0, 1, 2, 3, 4
CLOSING, OPENING, LAST, GIVEN_UP = 0, 3, 5, 7
"""Offsets of the first event of each kind."""


def number_of(token: int, offset: int) -> int:
    return token * SLOT + offset


def seen(number: int) -> int:
    """The last token that whoever saw the event has seen; 0: none. For the response's own end the terminal's number."""
    token, offset = divmod(max(number, 0), SLOT)
    return token if offset >= LAST else max(0, token - 1)
