"""Generated Triton. Enters: a normal form and a checked call. Leaves: the same result as the token loop, chunk by chunk.

A normal form fills the holes of the templates (`generation`); the text becomes a module in a real file (`modules`); `launch` runs its
kernels over buffers whose sizes `plan` chooses; `operation` registers both passes with torch.
"""
