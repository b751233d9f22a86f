"""Rounds of refresh, plan and apply that go on until they are stopped."""
