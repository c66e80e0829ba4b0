"""How many examples a property is tried on."""

from hypothesis import settings


def examples(count, **options):
    """Return settings for this many examples, and for ten times as many with --slow, which draws others each time."""
    return settings(max_examples=count if settings().derandomize else 10 * count, **options)
