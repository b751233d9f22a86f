"""What can be seen of a fleet from outside: its health, its metrics and a live page over HTTP. Read only."""
