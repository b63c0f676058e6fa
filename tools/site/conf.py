"""Settings of Sphinx; `tools.site.__main__` passes this folder with -c. Nothing on the pages asks another server."""

from tools.site.front_page import NAME
from tools.site.share import first_words, head

project = NAME
root_doc = "contents"  # index.html is `front_page`
language = "en"
extensions = ["myst_nb"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header", "mystnb.unknown_mime_type"]

nb_execution_mode = "off"  # outputs are those of the committed notebooks
nb_ipywidgets_js = {}  # the pictures play without a kernel and without ipywidgets

html_theme = "sphinx_book_theme"
html_title = NAME
html_logo = html_favicon = "../../lessons_lib/assets/logo.svg"
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
    "logo": {"text": NAME},
}


def setup(app):
    app.connect("html-page-context", say_what_it_is)


def say_what_it_is(app, page, template, context, doctree):
    """Add the tags of `share`; the logo leads to the first page."""
    words = first_words(context.get("body", "")) or f"{page}, in the source code of {NAME}"
    picture = page if page[:2].isdigit() else "index"
    title = context.get("title", page)
    context["metatags"] = context.get("metatags", "") + head(f"{title} · {NAME}", words, picture)
    context["theme_logo_link"] = context["pathto"]("index.html", 1)
