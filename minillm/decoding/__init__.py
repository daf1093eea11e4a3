"""From logits to text: sampling, the decode loops, streaming."""
