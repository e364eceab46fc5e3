"""What surrounds a rule in a model, as kernels of their own where torch takes many passes over the same numbers.

They are a short convolution, the norm and gate of a layer's output, and the loss of a large vocabulary. calls.py takes
the tensors of many replicas at once, on a CUDA device; torch's own functions say what they mean.
"""
