"""Takes it out."""

DIAGNOSIS = "takes-it-out"


def choose_victim(running):
    victim = max(running)
    running.remove(victim)
    return victim
