"""Spans of responses, for a collector of OpenTelemetry; off unless the settings name one."""
