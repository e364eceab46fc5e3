"""Text of the kernel that makes every operand's gradient, for rules whose heads decay as one or not at all."""
