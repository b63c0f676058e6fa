// Mends what the theme and myst-nb do to readers without a mouse or with a screen reader, and to those who print.

document.addEventListener("DOMContentLoaded", () => {
  // Their label hides the words that are shown: "Show the solution of 03.1", "Search Ctrl + K".
  for (const control of document.querySelectorAll("summary[aria-label], .search-button-field[aria-label]"))
    control.removeAttribute("aria-label");

  // What scrolls must be reachable with the Tab key.
  const reach = () => {
    for (const box of document.querySelectorAll(".cell_output .text_html, .cell_output .text_plain, pre, p:has(> img)"))
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  };
  addEventListener("load", reach);
  addEventListener("resize", reach);

  // On a phone a picture scrolls, so that its text can be read; a button turns it, and it has the whole screen.
  for (const picture of document.querySelectorAll(
    "lessons-player, div:has(> img.lessons-picture), p:has(> img[src*='_images/'])",
  )) {
    if (picture.parentElement.closest("lessons-player")) continue;
    const frame = document.createElement("div"),
      button = document.createElement("button");
    frame.className = "lessons-frame";
    button.textContent = "large picture";
    button.onclick = () => {
      frame.popover ??= "auto";
      frame.togglePopover();
    };
    frame.ontoggle = ({ newState }) => {
      const isLarge = newState === "open";
      button.textContent = isLarge ? "close" : "large picture";
      if (!isLarge) frame.popover = null; // back to its place
      picture.classList.toggle("lessons-is-large", isLarge);
      addRules(picture);
    };
    picture.replaceWith(frame);
    frame.append(picture, button);
  }
});

// Rules for players, which the page's own don't reach.
const RULES = new CSSStyleSheet();
RULES.replaceSync(`:host(.lessons-is-large) { svg { min-width: 0; } .sheet > div { height: auto !important; } .controls { margin-right: 80px; } }
  @media print { svg { min-width: 0; } .controls { display: none; } .sheet { overflow: visible; animation: none; } }`);
function addRules(player) {
  const sheets = player.shadowRoot?.adoptedStyleSheets;
  if (sheets && !sheets.includes(RULES)) sheets.push(RULES);
}

// A page is printed in light colors, and the pictures in the players as wide as the paper.
addEventListener("beforeprint", () => {
  const root = document.documentElement,
    theme = root.dataset.theme;
  root.dataset.theme = "light";
  addEventListener(
    "afterprint",
    () => {
      root.dataset.theme = theme;
    },
    { once: true },
  );
  document.querySelectorAll("lessons-player").forEach(addRules);
});
