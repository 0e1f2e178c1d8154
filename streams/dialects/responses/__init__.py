"""OpenAI's Responses as a pure translation: bodies to requests, tokens to items and events."""
