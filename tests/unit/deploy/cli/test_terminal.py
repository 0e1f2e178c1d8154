"""What tenants, models and strangers have written is shown to an operator, and commands no terminal."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.control import Control
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from deploy.cli import app, questions
from deploy.cli.chat import Answer
from deploy.cli.terminal import IN_ITS_PLACE, Terminal, printable

HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\x08\x7f\r\u202eevil\u2066\0"
"""Clears the screen, names the window, turns red, steps back, turns the text around."""


def shown(*renderables: object) -> str:
    file = io.StringIO()
    Terminal(file=file, force_terminal=True, color_system=None, width=200).print(*renderables)
    return file.getvalue()


@given(st.text())
def test_no_text_has_a_control_character_left(text: str) -> None:
    told = printable(text)
    assert len(told) == len(text)
    assert all(each.isprintable() or each in "\n\t" or each == IN_ITS_PLACE or not each.isascii() for each in told)
    assert not set(told) & set(map(chr, [*range(9), *range(11, 32), *range(127, 160)]))


def test_what_is_to_be_read_stays_as_it_is() -> None:
    text = "Grüße,\n\t東京 🦊 и мир — e\u0301 (a\u200db)"
    assert printable(text) == text


@pytest.mark.parametrize("way", [str, Text, escape], ids=["plain", "text", "markup"])
def test_nothing_hostile_reaches_a_terminal_in_a_line_or_a_table(way: object) -> None:
    assert callable(way)
    table = Table("what", title=way(HOSTILE))
    table.add_row(way(HOSTILE))
    told = shown(way(HOSTILE), table)
    assert "evil" in told
    assert not {*told} & {*HOSTILE} - {*"2J0;owned31mevil]["}


def test_what_rich_itself_commands_gets_there() -> None:
    assert shown(Control.home()).startswith("\x1b[H")
    file = io.StringIO()
    Terminal(file=file, force_terminal=True, color_system="standard").print("[red]no[/red]")
    assert "\x1b[31m" in file.getvalue()


def test_the_command_prints_so() -> None:
    assert isinstance(app.out, Terminal)
    assert isinstance(app.err, Terminal)


def test_a_models_answer_is_printed_so(capsys: pytest.CaptureFixture[str]) -> None:
    class Hostile:
        def ask(self, _body: object, on_text: object) -> Answer:
            assert callable(on_text)
            on_text(HOSTILE)
            return Answer()

    questions._say(Hostile(), [], "tiny", None)  # type: ignore[arg-type]
    assert "\x1b" not in capsys.readouterr().out
