"""FedAvg under fedbasis, pfl-research and Flower, each as a ratio to the same loop written by hand.

    make bench-peers        (makes .venv-peers with all three; some minutes)

Everybody is a process of its own that plays a round when it is its turn. Who cannot play is left out, with the reason.
"""

import importlib
import os
import sys
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from measure import Player, Turns, options, ratio, table  # noqa: E402
from workload import WORKLOADS, by_hand, ours  # noqa: E402

PLAYERS = ("by hand", "fedbasis", "pfl", "flwr")


def play(player: str, name: str) -> None:
    """Be a player."""
    workload, turns = WORKLOADS[name], Turns()
    if player in ("by hand", "fedbasis"):
        (by_hand if player == "by hand" else ours)(workload, turns)
    else:
        importlib.import_module({"pfl": "pfl_player", "flwr": "flower_player"}[player]).play(workload, turns)


def label(player: str) -> str:
    """Name a player with its version."""
    try:
        return f"{player} {version(player)}"
    except PackageNotFoundError:
        return player


def measured(name: str, repeats: int) -> tuple[dict[str, float], dict[str, str]]:
    """Return the median seconds of everybody who could play, and why the others could not."""
    taken: dict[str, list[float]] = {}
    why: dict[str, str] = {}
    with ExitStack() as stack:
        players = {}
        for player in PLAYERS:
            command = [sys.executable, __file__, "--player", player, "--workload", name]
            players[player] = stack.enter_context(Player(command, WORKLOADS[name].cores))
        for number in range(-2, repeats):
            for player in list(players):
                try:
                    seconds = players[player].play()["seconds"]
                except RuntimeError as error:
                    why[player] = f"{error}; what it said stands above"
                    del players[player]
                    continue
                if number >= 0:
                    taken.setdefault(player, []).append(seconds)
    return {player: median(values) for player, values in taken.items()}, why


def main() -> None:
    given = options(__doc__, player={"choices": PLAYERS}, workload={"choices": WORKLOADS})
    if given.player is not None:
        play(given.player, given.workload)
        return
    inherited = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parent), str(HERE), inherited]))
    rows = []
    repeats = {"logistic": 5 if given.quick else 50, "cnn": 2 if given.quick else 5}
    for name in [given.workload] if given.workload else WORKLOADS:
        taken, why = measured(name, repeats[name])
        for player in PLAYERS:
            if player in why:
                rows.append([name, label(player), "-", why[player]])
            else:
                milliseconds = f"{1000 * taken[player]:.0f}"
                rows.append([name, label(player), milliseconds, ratio(taken[player], taken["by hand"])])
    print(table(["workload", "simulator", "ms a round", "ratio to the loop by hand"], rows, words=2))


if __name__ == "__main__":
    main()
