"""What describes a route or a field, as HTML: the little Markdown that such texts have. Pure."""

import re
from html import escape
from typing import Final

_CODE: Final = re.compile(r"(`+)(.+?)\1", re.DOTALL)
_BOLD: Final = re.compile(r"\*\*(\S(?:.*?\S)?)\*\*", re.DOTALL)
_LINK: Final = re.compile(r"\[([^\]\[]+)\]\(((?:https?://|/|#)[^\s()]*)\)")
_ITEM: Final = re.compile(r"\s*[-*] ")
_GAP: Final = re.compile(r"\n\s*\n")


def described(text: str) -> str:
    """HTML of paragraphs, lists, `code`, **bold** and links; all else is text, whatever it looks like."""
    return "".join(_block(block) for block in _GAP.split(text.strip()) if block.strip())


def in_line(text: str) -> str:
    """The same of one paragraph, without an element around it."""
    parts, end = [], 0
    for code in _CODE.finditer(text):
        # What stands in code is nothing else.
        parts += [_spoken(text[end : code.start()]), f"<code>{escape(code[2].strip())}</code>"]
        end = code.end()
    return "".join([*parts, _spoken(text[end:])])


def _block(block: str) -> str:
    lines = block.splitlines()
    if all(_ITEM.match(line) for line in lines):
        items = (in_line(_ITEM.sub("", line, count=1)) for line in lines)
        return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>"
    return f"<p>{in_line(block)}</p>"


def _spoken(text: str) -> str:
    linked = _LINK.sub(r'<a href="\2">\1</a>', escape(text))
    return _BOLD.sub(r"<strong>\1</strong>", linked)
