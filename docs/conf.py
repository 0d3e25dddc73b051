import hashlib
import logging
import os
import sys
from pathlib import Path

import prudent

DOCS = Path(__file__).resolve().parent


def digest_of_code():
    """A name for this state of the package, of what it builds on, and of the helpers of cells."""
    kinds = ("src/**/*", "tests/reports/*.py", "constraints.txt", "docs/conf.py")
    files = (path for kind in kinds for path in DOCS.parent.glob(kind))
    found = hashlib.sha256(sys.version.encode())
    for path in sorted(path for path in files if path.is_file() and path.suffix != ".pyc"):
        found.update(str(path.relative_to(DOCS.parent)).encode() + path.read_bytes())
    return found.hexdigest()[:16]


sys.path.insert(0, str(DOCS / "_ext"))
# Cells run in kernels of their own, with one thread each. They find the command of this
# environment, and the tables that the gallery is drawn from.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
os.environ["PYTHONPATH"] = str(DOCS.parent / "tests" / "reports")

project = "prudent"
author = "The prudent developers"
release = prudent.__version__
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
    "sphinx_copybutton",
    "sphinx_design",
    "myst_nb",
    "generated",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"prudent {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["llms.txt"]
html_copy_source = False
html_show_copyright = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

# Cells that were run are not run again, unless anything that they may depend on has changed since.
nb_execution_mode = "cache"
nb_execution_cache_path = str(DOCS / "_build" / "executed" / digest_of_code())
logging.getLogger("traitlets").setLevel(logging.WARNING)  # it would tell each page that is run
nb_execution_timeout = 240
nb_execution_in_temp = True
# With warnings as errors, a cell that fails or warns fails the build. Raising instead would end it
# at the first one, and hide the traceback in a temporary file.
nb_execution_show_tb = True
nb_output_stderr = "warn"
nb_merge_streams = True


def setup(app):
    # It only adds a static file, but does not say so: without this, pages are read one by one.
    app.extensions["sphinx-mathjax-offline"].parallel_read_safe = True
