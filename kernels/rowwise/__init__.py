"""What surrounds a rule in a model, as kernels of their own where torch takes many passes over the same numbers: a short
convolution, the norm and gate of a layer's output, the loss of a large vocabulary.

calls.py takes the tensors of many replicas at once, on a CUDA device; torch's own functions say what they mean.
"""
