"""A mask explorer of 64 x 64 in a notebook of its own, in a real JupyterLab."""

CODE = (
    "from lessons_lib.viz.masks.explorer import MaskExplorer\nMaskExplorer(lengths=(22, 21, 20), cached=(0, 0, 0), "
    "longest=40)"
)


class MaskPage:
    """A mask explorer as it stands in the page, with times that include the painting."""

    def __init__(self, lab):
        notebook = lab.open_notebook(lab.write_notebook("mask_explorer.ipynb", [CODE]))
        notebook.run_all_cells()
        assert notebook.errors() == []
        self.page = notebook.page
        self.box = notebook.panel.locator(".lessons-mask")
        self.box.wait_for()

    def part(self, name, n=0):
        return self.box.locator(f".lessons-mask-{name}").nth(n)

    def picture(self):
        return self.part("picture").inner_html()

    def wait_for_hovers(self):
        self.part("picture").locator("title").first.wait_for(state="attached")

    def answer_to(self, act):
        """Do `act`; the picture after it, and the milliseconds from key or click until it had changed and been
        painted.
        """
        self.wait_for_hovers()  # so that what changes next is the answer
        before = self.picture()
        self.part("picture").evaluate(
            """picture => {
                 let started;
                 for (const kind of ['pointerdown', 'keydown'])
                   document.addEventListener(kind, () => { started = performance.now(); }, {capture: true, once: true});
                 window.answered = new Promise((resolve, reject) => {
                   const observer = new MutationObserver(() => {
                     observer.disconnect();
                     requestAnimationFrame(() => setTimeout(() => resolve([performance.now() - started, picture.innerHTML])));
                   });
                   observer.observe(picture, {childList: true, subtree: true, characterData: true});
                   setTimeout(() => reject(new Error('the picture did not change')), 20000);
                 });
               }"""
        )
        act()
        milliseconds, after = self.page.evaluate("() => window.answered")
        assert after != before
        return after, milliseconds

    def press(self, name, key, n=0):
        def act():
            self.part(name, n).locator("[role=slider]").focus()
            self.page.keyboard.press(key)

        return self.answer_to(act)
