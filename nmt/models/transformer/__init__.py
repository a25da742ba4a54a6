"""The Transformer (Vaswani et al. 2017) and its variants; `layers` is figure 1."""
