"""Settings of Sphinx; `tools.site.__main__` passes this folder with -c. Nothing on the pages asks another server."""

project = "Serving large language models, from the ground up"
language = "en"
extensions = ["myst_nb"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header", "mystnb.unknown_mime_type"]

nb_execution_mode = "off"  # outputs are those of the committed notebooks
nb_ipywidgets_js = {}  # the pictures play without a kernel and without ipywidgets

html_theme = "sphinx_book_theme"
html_title = "Serving LLMs"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {
    "use_download_button": False,
    "use_fullscreen_button": False,
    "use_repository_button": False,
    "show_toc_level": 2,
    "navbar_persistent": [],
    "footer_content_items": [],
}
