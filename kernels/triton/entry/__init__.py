"""The entry of a rule in one kernel, and its way back in another: text, launches, operations.

Enters: raw operands and constants. Leaves: the operands that the plain kernels take, and gradients of what came.
"""
