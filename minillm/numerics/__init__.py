"""Numbers in fewer bits: grids, packing, FP8."""
