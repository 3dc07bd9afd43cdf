"""The documentation site: `make docs` builds it offline into docs/_build/html; warnings are errors."""

import os
import sys
from pathlib import Path

# examples fit small models: one BLAS thread is faster, and nothing of the machine's data sets is used
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["DMO_DATA"] = ""
sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from numpydoc.xref import DEFAULT_LINKS
from public_names import public_names

import dmo

project = "dmo"
author = copyright = "the developers of dmo"
version = release = dmo.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "commands",
    "guides",
    "mathml",
    "public_names",
]
exclude_patterns = ["_build", "_ext", "_templates", "**/GALLERY_HEADER.rst"]
templates_path = ["_templates"]
nitpicky = False
suppress_warnings = ["config.cache"]

html_math_renderer = "mathml"
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "none"
numpydoc_show_class_members = False
DEFAULT_LINKS.clear()  # links of other projects need their inventories, which would be downloaded
numpydoc_xref_param_type = True
numpydoc_xref_ignore = "all"  # link only the public names of dmo
numpydoc_xref_aliases = {name: f"{package}.{name}" for name, package in public_names().items()}
default_role = "py:obj"  # a public name in backticks becomes a link, any other text becomes code

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "auto_tutorials",
    "filename_pattern": r"/\d\d_",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "remove_config_comments": True,
    "abort_on_example_error": True,
    "write_computation_times": False,  # a page that loads scripts from elsewhere
    "copyfile_regex": r".*\.csv",
}

html_theme = "pydata_sphinx_theme"
html_title = f"dmo {release.partition('+')[0]}"  # a commit's name is wider than a phone
html_static_path = ["_static"]
html_css_files = ["dmo.css"]
html_js_files = [("dmo.js", {"defer": "defer"})]
html_show_sourcelink = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "navigation_with_keys": False,
    "collapse_navigation": True,  # a list of all names on every page has buttons without a name
    "show_toc_level": 2,
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
