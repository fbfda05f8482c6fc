"""How sphinx builds these pages. Nothing here needs the network."""

from __future__ import annotations

import functools
import logging
import re
from collections import Counter
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import eventmq
import eventmq.sdk.events
from eventmq.cli.declared import DeclaredOptions
from eventmq.cli.program import program
from eventmq.settings.record import FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docutils.nodes import TextElement, reference
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

project = "EventMQ"
author = "the EventMQ authors"
copyright = author
version = release = installed_version("eventmq")

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
exclude_patterns = ["_build"]
default_role = "code"

html_theme = "furo"
html_title = f"EventMQ {release}"
html_static_path = ["_static"]
html_css_files = ["eventmq.css"]
html_search_scorer = str(Path(__file__).parent / "_static" / "scorer.js")

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autoclass_content = "class"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# Names of other packages and of the standard library have no page here; ours must have one.
nitpick_ignore_regex = [
    ("py:.*", r"(?!eventmq\b).*"),
    ("py:.*", r"eventmq\.(.*\.)?(F|P|R|T|T_co|Default|Decorator)"),
    # What a method returns and is not made by hand.
    (
        "py:.*",
        (
            r"eventmq\.(client\.submit\.SubmitBatch|client\.handle\.(JobOrigin|ResultClient)"
            r"|client\.templates\.Template|job\.JobState"
            r"|task\.(task|kinds)\.(AsyncTask|StreamTask|AsyncStreamTask|TaskApp)"
            r"|execution\.spec\.TaskSpec|policies\.Backoff|conversion\.Option)"
        ),
    ),
]


def find_public_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: TextElement
) -> reference | None:
    """Link ``eventmq.module.Name`` to ``eventmq.Name`` or ``eventmq.sdk.Name``, the public ones."""
    target = str(node.get("reftarget", ""))
    name = target.rpartition(".")[2]
    if node.get("refdomain") != "py" or (target != name and not target.startswith("eventmq.")):
        return None
    for public in (eventmq, eventmq.sdk, eventmq.sdk.events):
        if name in public.__all__:
            found = env.get_domain("py").resolve_any_xref(
                env, node["refdoc"], app.builder, f"{public.__name__}.{name}", node, contnode
            )
            if found:
                return found[0][1]
    return None


#: Commands whose options are settings, but for modules that are imported besides.
OF_SETTINGS = {"broker", "worker", "beat", "dev", "fsck", "backup"}
SETTINGS = FIELDS.keys() - {"imports"}


def escape_help(_: Sphinx, __: click.Context, lines: list[str]) -> None:
    """Keep markup out of help texts: they are written for the terminal. Options become code."""
    for place, line in enumerate(lines):
        if line.startswith(".. option::"):  # the last bracket of <MODULE[:ATTRIBUTE]> was lost
            lines[place] = re.sub(r"<([^<>\]]*\[[^<>\]]*)>", r"<\1]>", line)
        elif not line.lstrip().startswith(":"):
            escaped = re.sub(r"([\\*`|])", r"\\\1", line)
            lines[place] = re.sub(r"(?<![\w-])(--[a-z][a-z0-9-]*)", r"``\1``", escaped)


#: An option that as many commands have, with the same words, is described once for all of them.
SHARED_BY = 5


def options_of(command: click.Command) -> list[click.Option]:
    """Return the options that help texts show."""
    return [each for each in command.params if isinstance(each, click.Option) and not each.hidden]


def every_command(group: click.Group) -> Iterator[click.Command]:
    """Yield the commands of a group and those below them."""
    for command in group.commands.values():
        yield command
        if isinstance(command, click.Group):
            yield from every_command(command)


def identity(option: click.Option) -> tuple[str, str]:
    """Return what two commands that share an option have in common."""
    return ", ".join((*option.opts, *option.secondary_opts)), option.help or ""


@functools.cache
def shared_options() -> dict[tuple[str, str], click.Option]:
    """Return the options that `SHARED_BY` commands have, the most common ones first."""
    every = [each for command in every_command(program) for each in options_of(command)]
    counts = Counter(map(identity, every))
    options = {identity(each): each for each in every}
    return {name: options[name] for name, count in counts.most_common() if count >= SHARED_BY}


def list_shared(_: Sphinx, page: str, source: list[str]) -> None:
    """Put the descriptions of shared options into the page about the command line."""
    if page != "reference/cli":
        return
    lines: list[str] = []
    for (names, text), option in shared_options().items():
        flag = option.is_flag or option.count
        value = "" if flag else f" <{option.make_metavar(click.Context(program))}>"
        described = [text]
        escape_help(_, click.Context(program), described)
        # An address is no link.
        line = described[0].replace("://", r"\://")
        lines += [f".. option:: {names}{value}", "", f"   {line}", ""]
    source[0] = source[0].replace(".. shared options", "\n".join(lines))


def name_files(text: str) -> str:
    """Show the name of a file, which tests know from a comment, above its code."""
    return re.sub(
        r"^\.\. file: (\S+)\n\n(\.\. code-block:: \S+\n)",
        r"\2   :caption: \1\n",
        text,
        flags=re.MULTILINE,
    )


def name_files_of_page(_: Sphinx, __: str, source: list[str]) -> None:
    """Show the names of files of a page."""
    source[0] = name_files(source[0])


def name_files_of_part(_: Sphinx, __: Path, ___: str, source: list[str]) -> None:
    """Show those of what a page includes."""
    source[0] = name_files(source[0])


def drop_shared(_: Sphinx, ctx: click.Context, lines: list[str]) -> None:
    """Name shared options instead of describing them once more."""
    blocks = re.split(r"^(?=\.\. option::)", "\n".join(lines), flags=re.MULTILINE)
    kept, named = blocks[:1], []
    for option, block in zip(options_of(ctx.command), blocks[1:], strict=True):
        if identity(option) in shared_options():
            named.append(f"``{option.opts[-1]}``")
        else:
            kept.append(block)
    if named:
        kept.append(f"\n:ref:`Shared options <shared-options>`: {', '.join(named)}.\n")
    lines[:] = "".join(kept).split("\n")


def add_variables(_: Sphinx, ctx: click.Context, lines: list[str]) -> None:
    """Name the environment variable of each option that is a setting."""
    text = "\n".join(lines)
    blocks = re.split(r"^(?=\.\. option::)", text, flags=re.MULTILINE)[1:]
    for option, block in zip(options_of(ctx.command), blocks, strict=True):
        name = str(option.name)
        if name == "broker" or (ctx.command.name in OF_SETTINGS and name in SETTINGS):
            field = f"    :environment variable: ``EVENTMQ_{name.upper()}``\n"
            gap = "\n" if block.rstrip().rpartition("\n")[2].strip().startswith(":") else "\n\n"
            text = text.replace(block, f"{block.rstrip()}{gap}{field}\n")
    lines[:] = text.split("\n")


def add_declared() -> None:
    """Give commands the options that plugins declare for them, which come with a command line."""
    program.load()
    for command in program.commands.values():
        if isinstance(command, DeclaredOptions):
            with click.Context(command) as ctx:
                command.collect(ctx)
                command.params = command.get_params(ctx)[:-1]  # without --help


#: What the HTML of a page must not have: errors of docutils, and lists of contents. Pages of Furo
#: have one at their side, and its style sheet draws another as an error. Nor links that were none,
#: as within bold text. Sphinx warns of none of these.
ERROR_BOXES = (
    'class="contents', 'class="system-message', 'class="problematic', ":doc:`", ":ref:`", ":term:`",
)  # fmt: skip


def find_error_boxes(
    _: Sphinx, page: str, __: str, context: dict[str, Any], ___: object = None
) -> None:
    """Warn, which fails the build, of what a reader would see as an error."""
    for sign in ERROR_BOXES:
        if sign in context.get("body", ""):
            logging.getLogger("sphinx.eventmq").warning(
                "%s: the page shows an error: %s", page, sign
            )


def break_names(_: Sphinx, __: str, ___: str, context: dict[str, Any], ____: object = None) -> None:
    """Let long names in tables break behind punctuation, where browsers keep them whole."""
    if "body" in context:
        context["body"] = re.sub(
            r'<table class="docutils.*?</table>',
            lambda table: re.sub(
                r'(?<=<span class="pre">)[^<]+',
                lambda name: re.sub(r"([_./,:=]+)(?=[a-zA-Z])", r"\1<wbr>", name[0]),
                table[0],
            ),
            context["body"],
            flags=re.DOTALL,
        )


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the functions above."""
    add_declared()
    app.connect("missing-reference", find_public_name)
    for part in ("description", "options", "epilog"):
        app.connect(f"sphinx-click-process-{part}", escape_help)
    app.connect("sphinx-click-process-options", add_variables)
    app.connect("sphinx-click-process-options", drop_shared)
    app.connect("source-read", list_shared)
    app.connect("source-read", name_files_of_page)
    app.connect("include-read", name_files_of_part)
    app.connect("html-page-context", find_error_boxes)
    app.connect("html-page-context", break_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
