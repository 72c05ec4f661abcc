"""Fill the pages that are generated: the command line from its typer apps, the configuration from its classes.

A page asks for a part by a comment on a line of its own: ``<!-- command line: fedbasis -->``,
``<!-- configuration -->``, ``<!-- tuning: tries -->`` or ``<!-- tuning: logs -->``. Nothing here needs a network.
"""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

COMMANDS = re.compile(r"^<!-- command line: (\w+) -->$", re.MULTILINE)
KEYS = re.compile(r"^<!-- configuration -->$", re.MULTILINE)
TRIES = re.compile(r"^<!-- tuning: tries -->$", re.MULTILINE)
WINNERS = re.compile(r"^<!-- tuning: logs -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the comments of a page by what they ask for (mkdocs calls this for every page)."""
    markdown = COMMANDS.sub(lambda found: command_line(found[1]), markdown)
    markdown = KEYS.sub(lambda _: configuration(), markdown)
    markdown = TRIES.sub(lambda _: tuning_tries(), markdown)
    return WINNERS.sub(lambda _: tuning_logs(), markdown)


def command_line(program: str) -> str:
    """Describe every command of ``fedbasis`` or ``pflbed``."""
    import typer

    app = importlib.import_module(f"{program}.cli").app
    return "\n".join(_commands(typer.main.get_command(app), program, None))


def _commands(command: Any, path: str, parent: Any) -> Iterator[str]:
    context = command.make_context(path, [], parent=parent, resilient_parsing=True)
    yield f"{'##' if parent is None else '###'} `{path}` {{ #{path.replace(' ', '-')} }}\n"
    yield f"{_plain(command.help or '')}\n"
    yield f"```text\n{path} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    if arguments:
        yield "| argument | meaning |\n| --- | --- |"
        yield from (f"| `{each.make_metavar(context)}` | {_cell(each.help or '')} |" for each in arguments)
        yield ""
    if options:
        yield "| option | values | default | meaning |\n| --- | --- | --- | --- |"
        yield from (_option(each, context) for each in options)
        yield ""
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{path} {name}", context)


def _option(option: Any, context: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    values = "" if option.is_flag else f"`{_cell(option.make_metavar(context))}`"
    default = option.get_default(context, call=False)
    default = getattr(default, "value", default)
    shown = "required" if option.required else "" if default is None or default is False else f"`{default}`"
    return f"| {names} | {values} | {shown} | {_cell(option.help or '')} |"


def _plain(text: str) -> str:
    """Turn rich's markup into markdown, and lines that were wrapped for the source into paragraphs."""
    text = re.sub(r"\[bold\](.*?)\[/bold\]", r"**\1**", text, flags=re.DOTALL)
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n")).replace("<", "&lt;")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def configuration() -> str:
    """Describe every key of a configuration file, table by table, and the settings of every method."""
    from fedbasis.experiment.starter import keys

    parts: list[str] = []
    shown = None
    for section, key, default, meaning in keys():
        if section != shown:
            level = "###" if "(" in section else "##"
            parts.append(
                f"\n{level} `[{section}]`\n\n| key | default | meaning |\n| --- | --- | --- |"
                if section
                else "## Outside any table\n\n| key | default | meaning |\n| --- | --- | --- |"
            )
            shown = section
        parts.append(f"| `{key}` | `{_cell(default)}` | {_cell(meaning)} |")
    return "\n".join(parts)


def tuning_tries() -> str:
    """List what is tried for every method."""
    from fedbasis.studies.candidates import TUNABLES
    from fedbasis.studies.tuning import in_words

    lines = ["| name | its own nine tries, at the best learning rate unless they name one |", "| --- | --- |"]
    for name, tunable in TUNABLES.items():
        lines.append(f"| `{name}` | {'; '.join(f'`{in_words(one)}`' for one in tunable.own)} |")
    return "\n".join(lines)


def tuning_logs() -> str:
    """Show the logs that are committed."""
    from fedbasis.studies.tuned import HERE, read_tuned
    from fedbasis.studies.tuning import as_markdown

    logs = [read_tuned(path) for path in sorted(HERE.glob("*.json"))]
    if not logs:
        return "No log is committed yet: every method has its settings as they are."
    return "\n\n".join(f"### {log.testbed}, scale `{log.scale}`\n\n{as_markdown(log)}" for log in logs)
