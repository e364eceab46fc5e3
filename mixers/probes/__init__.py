"""What a memory does while it reads: numbers and plots from a trained mixer and a batch of tokens.

Enters: a rule's normal form and its operands, as a layer computes them from a text. Leaves: plain data, quantity by
quantity, and a page. Everything is read off the token loop; nothing here knows a rule by its name.
"""
