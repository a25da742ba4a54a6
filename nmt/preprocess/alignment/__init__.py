"""Word alignment of a corpus: IBM model 1, the HMM model, and the aligner."""
