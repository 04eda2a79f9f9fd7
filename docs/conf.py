"""How sphinx makes the site: `nox -s docs`."""

from mobius.__about__ import __version__

project = "Mobius"
author = "The Mobius authors"
copyright = "The Mobius authors"
release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "Mobius"
html_show_sourcelink = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

# Docstrings are written in Google style, with code in single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
nitpicky = False


def _fences(app, what, name, obj, options, lines):
    """Turn fenced code blocks of a docstring, which are Markdown, into reStructuredText's."""
    del app, what, name, obj, options
    inside, converted = False, []
    for line in lines:
        if line.lstrip().startswith("```"):
            margin = line[: len(line) - len(line.lstrip())]
            language = line.strip("` ")
            opening = [f"{margin}.. code-block:: {language or 'text'}", ""]
            converted += [""] if inside else ["", *opening]
            inside = not inside
        else:
            converted.append(f"    {line}" if inside and line else line)
    lines[:] = converted


def setup(app):
    """Connect what docstrings need."""
    app.connect("autodoc-process-docstring", _fences)
