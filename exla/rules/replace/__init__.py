"""Replace rules, a file for each kind; whichever is imported first, they are tried in the order of the files' names."""

from exla.ir.rewrites import REPLACE_RULES

REPLACE_RULES.in_order(rare=False)
