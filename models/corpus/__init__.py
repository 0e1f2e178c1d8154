"""Generates the text that the small chat models are trained on.

Everything here is a pure function of a seed: no files, no network, no clock. What a model trained on it can say is
what these tables can say, and what stands in its prompt.

The phrasings of `models/held_out` are held out, and most values in them: none of its questions is ever generated here.
"""

from models.corpus.mixture import conversation, conversations
from models.corpus.paraphrases import paraphrases
from models.corpus.turns import Call, Conversation, Message, Tool

__all__ = ["Call", "Conversation", "Message", "Tool", "conversation", "conversations", "paraphrases"]
