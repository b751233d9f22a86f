"""Plans, statuses, reports and diagnostics as text and as JSON. Only `Progress` prints.

Texts end in a newline (or are empty), so print them without another one. Text from outside is made safe for a
terminal. There are colours only if the caller asks for them.
"""
