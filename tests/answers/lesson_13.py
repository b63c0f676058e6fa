"""Answers to the exercise of lesson 13: what learners get wrong, and other ways to be right."""

import bisect

from answers import Wrong
from lessons_lib.measuring.tuning import largest_that_fits

# 13.1 largest_that_fits


def step_by_step(fits, most):
    size = 0
    while size < most and fits(size + 1):
        size += 1
    return size


def from_above(fits, most):
    size = most
    while size and not fits(size):
        size -= 1
    return size


def one_too_many(fits, most):
    return largest_that_fits(fits, most) + 1


def never_tries_most(fits, most):
    fitting, too_large = 0, most
    while too_large - fitting > 1:
        middle = (fitting + too_large) // 2
        fitting, too_large = (middle, too_large) if fits(middle) else (fitting, middle)
    return fitting


def one_at_least(fits, most):
    return max(1, largest_that_fits(fits, most))


def begins_at_one(fits, most):
    fitting, too_large = 1, most + 1
    while too_large - fitting > 1:
        middle = (fitting + too_large) // 2
        fitting, too_large = (middle, too_large) if fits(middle) else (fitting, middle)
    return fitting


def tries_nothing(fits, most):
    return largest_that_fits(fits, most) if fits(0) else 0


def powers_of_two(fits, most):
    size = 0
    while max(1, 2 * size) <= most and fits(max(1, 2 * size)):
        size = max(1, 2 * size)
    return size


def last_tried(fits, most):
    fitting, too_large, middle = 0, most + 1, 0
    while too_large - fitting > 1:
        middle = (fitting + too_large) // 2
        fitting, too_large = (middle, too_large) if fits(middle) else (fitting, middle)
    return middle


def never_ends(fits, most):
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def asks_again(fits, most):
    size = largest_that_fits(fits, most)
    return size if size and fits(size) else 0


def half_sizes(fits, most):
    fitting, too_large = 0, most + 1
    while too_large - fitting > 1:
        middle = (fitting + too_large) / 2
        fitting, too_large = (middle, too_large) if fits(middle) else (fitting, middle)
    return fitting


def in_quarters(fits, most):
    fitting, too_large = 0, most + 1
    while too_large - fitting > 1:
        middle = fitting + max(1, (too_large - fitting) // 4)
        fitting, too_large = (middle, too_large) if fits(middle) else (fitting, middle)
    return fitting


def beyond_most(fits, most):
    size = 1
    while fits(size):
        size *= 2
    return largest_that_fits(fits, size)


def says_yes(fits, most):
    return largest_that_fits(fits, most) > 0


def skips_after_a_yes(fits, most):
    fitting, too_large = 0, most + 1
    while too_large - fitting > 1:
        middle = (fitting + too_large) // 2
        if fits(middle):
            fitting = middle
        else:
            too_large = middle - 1
    return fitting


def by_bisect(fits, most):
    return bisect.bisect_left(range(1, most + 1), True, key=lambda size: not fits(size))


def both_ends_inclusive(fits, most):
    low, high, best = 1, most, 0
    while low <= high:
        middle = low + (high - low) // 2
        if fits(middle):
            best, low = middle, middle + 1
        else:
            high = middle - 1
    return best


def most_first(fits, most):
    if fits(most):
        return most
    fitting, too_large = 0, most
    while fitting + 1 < too_large:
        middle = (fitting + too_large + 1) // 2
        fitting, too_large = (middle, too_large) if fits(middle) else (fitting, middle)
    return fitting


WRONG = {
    "13.1": [
        Wrong("step by step", step_by_step, "You go up one size at a time"),
        Wrong("from above", from_above, "You go down one size at a time"),
        Wrong("one too many", one_too_many, "smallest size that doesn't fit"),
        Wrong("never tries most", never_tries_most, "never tried `most` itself"),
        Wrong("at least one", one_at_least, "Not even 1 fits"),
        Wrong("begins at one", begins_at_one, "You tried []"),
        Wrong("tries 0", tries_nothing, "your code tried the size 0"),
        Wrong("powers of two", powers_of_two, "only powers of two"),
        Wrong("the last one tried", last_tried, "that you tried last"),
        Wrong("never ends", never_ends, "still going after"),
        Wrong("asks again", asks_again, "more than once"),
        Wrong("half sizes", half_sizes, "should be an int; your code tried 1.0"),
        Wrong("quarters, not halves", in_quarters, "tries are enough"),
        Wrong("beyond most", beyond_most, "your code tried the size 2"),
        Wrong("says yes", says_yes, "expected the size"),
        Wrong("skips after a no", skips_after_a_yes, "Go on until"),
    ],
}

RIGHT = {
    "13.1": [by_bisect, both_ends_inclusive, most_first],
}
