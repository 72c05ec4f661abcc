"""Distinct names for runs of one method: by the settings that differ, the data, the seed, or the folder."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedbasis.report.runs import RunData

LONGEST = 48
"""The length limit of a name made of settings."""
NOT_SETTINGS = ("seed", "machine.")


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Name every setting by its path, such as ``method.tau``."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def differing(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the settings that are not the same everywhere, with their values; one that is absent is None."""
    all_flat = [flat(config) for config in configs]
    keys = sorted({key for config in all_flat for key in config})
    values = {key: [config.get(key) for config in all_flat] for key in keys}
    return {key: mine for key, mine in values.items() if any(value != mine[0] for value in mine)}


def suffixes(runs: Sequence[RunData]) -> list[str]:
    """Return a suffix to the method's name for every run; all are different."""
    seeds = [f" · seed {run.seed}" for run in runs]
    settings = _settings(runs)
    sources = [f" · {_brief(run.config['data'].get('source'))}" for run in runs]
    hashes = [run.folder.removeprefix(f"{run.method}-") for run in runs]
    choices = [
        [""] * len(runs),
        settings,
        sources,
        [a + b for a, b in zip(settings, seeds, strict=True)],
        [f" · {text[:6]}" for text in hashes],
        [f" · {text}" for text in hashes],
        [f" · {text} ({number})" for number, text in enumerate(hashes, start=1)],
    ]
    return next(choice for choice in choices if len(set(choice)) == len(runs))


def _settings(runs: Sequence[RunData]) -> list[str]:
    """Write the differing settings of every run, or nothing where that would be long."""
    differ = {k: v for k, v in differing([run.config for run in runs]).items() if not k.startswith(NOT_SETTINGS)}
    lasts = [key.rpartition(".")[2] for key in differ]
    names = [last if lasts.count(last) == 1 else key for key, last in zip(differ, lasts, strict=True)]
    texts = []
    for number in range(len(runs)):
        parts = [f"{name} {_brief(values[number])}" for name, values in zip(names, differ.values(), strict=True)]
        texts.append("".join(f" · {part}" for part in parts))
    return texts if max(map(len, texts)) <= LONGEST else [""] * len(runs)


def _brief(value: Any) -> str:
    return value.rstrip("/").rpartition("/")[2] if isinstance(value, str) else str(value)
