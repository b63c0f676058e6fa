// Mends two things that the theme and myst-nb do to readers without a mouse or with a screen reader.

document.addEventListener("DOMContentLoaded", () => {
  // Their label hides the words that are shown: "Show the solution of 03.1", "Search Ctrl + K".
  for (const control of document.querySelectorAll("summary[aria-label], .search-button-field[aria-label]"))
    control.removeAttribute("aria-label");

  // What scrolls must be reachable with the Tab key.
  const reach = () => {
    for (const box of document.querySelectorAll(".cell_output .text_html, .cell_output .text_plain, pre"))
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  };
  reach();
  addEventListener("resize", reach);
});
