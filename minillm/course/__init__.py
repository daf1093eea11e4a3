"""The course: exercises, checks, progress, and the building of lessons."""
