"""What only a state on a PostgreSQL server needs."""
