import prudent

project = "prudent"
author = "The prudent developers"
release = prudent.__version__
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
    "myst_parser",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"prudent {release}"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
myst_enable_extensions = ["dollarmath"]
