"""How sphinx builds these pages. Nothing here needs the network."""

from __future__ import annotations

from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, Any

import eventmq

if TYPE_CHECKING:
    from docutils.nodes import TextElement, reference
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

project = "EventMQ"
author = "the EventMQ authors"
copyright = author
version = release = installed_version("eventmq")

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
default_role = "code"

html_theme = "furo"
html_title = f"EventMQ {release}"
html_static_path = ["_static"]

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
            r"|execution\.spec\.TaskSpec|policies\.Backoff)"
        ),
    ),
]


def find_public_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: TextElement
) -> reference | None:
    """Link ``eventmq.module.Name`` to ``eventmq.Name``, where users import it from."""
    target = str(node.get("reftarget", ""))
    name = target.rpartition(".")[2]
    if node.get("refdomain") != "py" or name not in eventmq.__all__:
        return None
    if target not in (name, f"eventmq.{name}") and not target.startswith("eventmq."):
        return None
    found = env.get_domain("py").resolve_any_xref(
        env, node["refdoc"], app.builder, f"eventmq.{name}", node, contnode
    )
    return found[0][1] if found else None


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the function above."""
    app.connect("missing-reference", find_public_name)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
