"""The provider `local`: the suite of all providers, and what is its own."""
