"""Token by token."""

def split_budget(uncomputed, budget, chunk_size=None):
    counts = [0] * len(uncomputed)
    order = sorted(range(len(uncomputed)), key=lambda place: uncomputed[place] > 1)
    for place in order:
        for _ in range(min(uncomputed[place], chunk_size or budget)):
            if sum(counts) < budget:
                counts[place] += 1
    return counts
