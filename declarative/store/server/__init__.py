"""The parts that only a state on a PostgreSQL server needs."""
