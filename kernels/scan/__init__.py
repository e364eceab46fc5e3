"""Scans of vectors whose channels decay each on its own: the memory of RG-LRU and of Mamba-1, token by token.

They are rules too (one head a channel, one value channel), but no matrix product helps them: a program of its own takes
a block of channels through time. Enters: what `scan` and `selective_scan` of calls.py take.
"""
