"""Payloads of messages besides arrays: symbols, and shapes alone."""
