"""A rule becomes a layer: where its operands come from, the mixer around it, and the partners of a hybrid.

Enters: a closed `Rule` and a `Layer` (options.py, data only). Leaves: `Mixer` (mixer.py), [B, T, width] -> the same.
"""
