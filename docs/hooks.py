"""Fill the pages that are generated: the command line from its typer apps, the configuration from its classes.

A page asks for a part by a comment on a line of its own: ``<!-- command line: fedbasis -->`` or
``<!-- configuration -->``. Nothing here needs a network.
"""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

COMMANDS = re.compile(r"^<!-- command line: (\w+) -->$", re.MULTILINE)
KEYS = re.compile(r"^<!-- configuration -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the comments of a page by what they ask for (mkdocs calls this for every page)."""
    markdown = COMMANDS.sub(lambda found: command_line(found[1]), markdown)
    return KEYS.sub(lambda _: configuration(), markdown)


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
    from fedbasis.experiment.config import Experiment
    from fedbasis.methods import METHODS

    parts = []
    for name, field in Experiment.model_fields.items():
        section = field.annotation
        if name != "method" and hasattr(section, "model_fields"):
            parts.append(f"## `[{name}]`\n\n{_plain(section.__doc__ or '')}\n\n{_keys(section)}")
    parts.append("## `[method]`\n\n`name` chooses the method; the other keys are its settings.\n")
    parts += [
        f'### `name = "{name}"`\n\n{_keys(method.Config) if method.Config.model_fields else "No settings."}\n'
        for name, method in METHODS.items()
    ]
    return "\n\n".join(parts)


def _keys(section: Any) -> str:
    lines = ["| key | default | meaning |", "| --- | --- | --- |"]
    for name, field in section.model_fields.items():
        default = (
            "required" if field.is_required() else "unset" if field.default is None else f"`{_value(field.default)}`"
        )
        values = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        choices = f"one of {', '.join(f'`{_value(each)}`' for each in values)}" if values else ""
        lines.append(f"| `{name}` | {default} | {'; '.join(filter(None, (_cell(field.description or ''), choices)))} |")
    return "\n".join(lines)


def _value(value: Any) -> str:
    """Write a default as TOML does."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(each)}" for key, each in value.items()) + " }" if value else "{}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return str(value)
