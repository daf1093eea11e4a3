"""Triton kernels, each beside a torch twin that says what it computes. Imported as minillm.kernels.

On a machine without a GPU they run under Triton's interpreter: set TRITON_INTERPRET=1 before importing this package.
"""
