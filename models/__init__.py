"""The project's small chat model: what it is trained on, how, and how well it does."""
