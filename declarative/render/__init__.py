"""Plans, statuses, reports and diagnostics as text and as JSON. Nothing here prints, save `Progress`.

Texts end in a newline (or are empty), so print them without one of your own. Whatever comes from
outside is made safe for a terminal; colours are there only when asked for.
"""
