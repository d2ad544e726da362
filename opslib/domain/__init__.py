"""The pure core: values, readers and judgements. No I/O, no clock, no randomness."""
