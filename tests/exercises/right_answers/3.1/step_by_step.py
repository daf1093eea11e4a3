"""Step by step."""

def slot_efficiency(lengths):
    wanted = computed = step = 0
    while any(length > step for length in lengths):
        wanted += sum(length > step for length in lengths)
        computed += len(lengths)
        step += 1
    return wanted / computed
