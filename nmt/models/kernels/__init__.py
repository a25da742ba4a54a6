"""Attention over packed sentences: on a CPU, with FlashAttention, and with Triton kernels."""
