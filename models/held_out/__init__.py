"""What the model is measured with: questions in words and with values that the training text never has."""

from typing import Final

from models.held_out.forms import FORMS
from models.held_out.questions import Question
from models.held_out.safety import SAFETY
from models.held_out.talk import STORIES, TALK
from models.held_out.tools import TOOLS

HELD_OUT: Final[dict[str, tuple[Question, ...]]] = {**TALK, **SAFETY, **TOOLS, **FORMS, **STORIES}
"""By topic."""
