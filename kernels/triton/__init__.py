"""Generated Triton. Enters: a normal form and a checked call. Leaves: what the token loop gives, chunk by chunk.

A normal form fills the holes of the templates (`generation`, `expressions`, `adjoint`, `single_step`); the text becomes
a module in a real file (`modules`); `plan` chooses sizes, `sizes` reads a call, `launch` runs the kernels, and
`operation` registers them with torch. A form of more than four rows a token is first cut into shorter tokens
(`cutting`, `patterns`, `relaying`), and `longer_tokens` lays its operands out. Raw operands come through `entry`.
"""
