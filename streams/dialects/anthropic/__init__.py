"""Anthropic's Messages API as a pure translation: bodies to requests, answers to messages and stream events."""
