"""The holes of the chunk-parallel kernels of rules whose channels decay on their own.

Four tokens, a quad, stand beside one another in registers, one tile [C / 4, BK] for each, so that what decays leave
between them is a product of numbers at hand; between quads it is one exponential a quad and level. Names in the text:
`a_s_r`, `b_s_r` residual and write rows of substep s of the quad's token r, `q_r` its read, `left_r` what all its decay
points leave, `log_r` the logarithm.
"""
