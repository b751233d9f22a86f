"""A fleet as seen from outside: its health, its metrics and a live page over HTTP. Read only."""
