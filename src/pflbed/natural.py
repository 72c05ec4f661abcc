"""The natural partition: one client per user of the table, trained, validated and tested on its own images.

For datasets with users, such as GLD23k. There is no shared test set: the test images are drawn from the client's own
images, so they are weighted equally.
"""

import numpy as np

from pflbed.assignment import Assignment, by_domain
from pflbed.benchmark import NEW, PARTICIPATING, TEST, UNUSED, VAL, Benchmark
from pflbed.errors import InputError
from pflbed.partition import spread
from pflbed.seeding import generator
from pflbed.spec import Spec
from pflbed.table import Rows, Table


def natural(table: Table, spec: Spec) -> Benchmark:
    """One client per user; each holds out some of its own images, stratified by class where possible."""
    if table.users is None:
        raise InputError(
            "A natural partition needs the user of every image, but this dataset names no users; "
            "choose another partition or give a table with a user column"
        )
    if table.official_test is not None and table.official_test.any():
        raise InputError(
            "A natural partition tests every client on images of its own, but this table marks an official test set "
            f"of {table.official_test.sum()} images; leave the split column out or choose another partition"
        )
    assignment = Assignment(table, spec)
    wanted = spec.clients_per_domain + spec.new_clients_per_domain
    for domain, rows in by_domain(table):
        order = rows[np.argsort(table.users[rows], kind="stable")]
        users, starts = np.unique(table.users[order], return_index=True)
        people = dict(zip(users.tolist(), np.split(order, starts[1:]), strict=True))
        enough = [user for user, mine in people.items() if _is_enough(len(mine), spec)]
        if len(enough) < wanted:
            raise InputError(
                f"{wanted} natural clients need as many users with at least {spec.min_rows} images to train on and one "
                f"to test a new client on, got {len(enough)} of {len(users)} users; ask for fewer clients or a smaller "
                f"min_rows (domain {domain})"
            )
        names = [table.user_names[user] for user in enough]
        # Every user draws its own rank, so adding or removing a user does not reorder the others.
        ranks = np.argsort([generator(spec.seed, "role", domain, name).random() for name in names], kind="stable")
        chosen = sorted(ranks[:wanted].tolist())
        participating = set(ranks[: spec.clients_per_domain].tolist())
        for new in (False, True):
            for i in chosen:
                if (i in participating) != new:
                    _one_user(assignment, f"{domain}/{names[i]}", people[enough[i]], new)
    if table.groups is not None:
        _keep_apart(assignment, table.groups)
    return assignment.benchmark()


def _one_user(assignment: Assignment, name: str, rows: Rows, new: bool) -> None:
    """Split a user's rows into training, validation and test, stratified by class."""
    spec = assignment.spec
    order = rows[spread(assignment.table.labels[rows], generator(spec.seed, "own", name))]
    train, val = _cut(len(rows), spec, new)
    mine, held = order[:train], order[train:]
    assignment.client[rows] = len(assignment.ids)
    assignment.ids.append(name)
    assignment.split[mine] = NEW if new else PARTICIPATING
    assignment.split[held[:val]], assignment.split[held[val:]] = VAL, TEST
    if new:
        for number, part in reversed(list(enumerate(spec.sizes.values()))):
            assignment.smallest[mine[: _nearest(part * len(rows))]] = number


def _keep_apart(assignment: Assignment, groups: tuple[str, ...]) -> None:
    """Of duplicates in several splits keep only those in the test set, else those in the validation set."""
    numbers = np.unique(np.asarray(groups), return_inverse=True)[1]
    for split, others in ((TEST, (VAL, NEW, PARTICIPATING)), (VAL, (NEW, PARTICIPATING))):
        copies = np.isin(numbers, numbers[assignment.split == split]) & np.isin(assignment.split, others)
        assignment.split[copies], assignment.smallest[copies] = UNUSED, -1
        assignment.client[copies] = -1
    trained = np.bincount(
        assignment.client[(assignment.split <= NEW) & (assignment.client >= 0)], minlength=len(assignment.ids)
    )
    if (poor := np.flatnonzero(trained < assignment.spec.min_rows)).size:
        raise InputError(
            f"Client {assignment.ids[poor[0]]!r} must train on at least {assignment.spec.min_rows} images, got "
            f"{trained[poor[0]]} that are no copies of test or validation images; remove copies or "
            "ask for a smaller min_rows"
        )


def _is_enough(count: int, spec: Spec) -> bool:
    """Whether a user has enough images for either role, so that roles do not depend on the number of images."""
    trained = [_cut(count, spec, new)[0] for new in ((False, True) if spec.new_clients_per_domain else (False,))]
    testable = not spec.new_clients_per_domain or count > sum(_cut(count, spec, new=True))
    return min(trained) >= spec.min_rows and testable


def _cut(count: int, spec: Spec, new: bool) -> tuple[int, int]:
    """The number of training and of validation rows of a user; the rest are test rows."""
    share = max(spec.sizes.values()) if new else (spec.split[0] + spec.split[1]) / 100
    train = min(count, _nearest(share * count))
    left = count - train
    if not new and not spec.split[3]:
        return train, left  # rounding must not create a test set
    return train, min(left, int(spec.split[2] / 100 * count + 0.5))


def _nearest(count: float) -> int:
    return max(1, int(count + 0.5))
