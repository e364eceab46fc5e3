"""A trained mixer leaves as a directory that works without archsearch, proves itself and can be read by a person.

Enters: plain data (a rule, its layer, its model, its weights, where they come from). Leaves: the directory, and `load`,
which rebuilds the module from the rule's text and never runs the directory's code.
"""
