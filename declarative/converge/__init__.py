"""The use case of `apply`, `destroy` and the loop: look, settle, plan, ask, carry out.

It knows no command line and prints no plan: its callers pass in who is asked and who is told (`ports`).
"""
