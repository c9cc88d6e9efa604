"""What seconds tell, on a machine with other work: it disturbs one measurement or another, and a fault all of them."""

_NUM_TRIES = 3


def hold_undisturbed(check):
    """Have the check, which measures anew and is told the number of the try, hold in one of three tries."""
    for number in range(_NUM_TRIES):
        try:
            check(number)
        except AssertionError:
            if number == _NUM_TRIES - 1:
                raise
        else:
            return
