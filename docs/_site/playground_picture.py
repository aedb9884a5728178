"""The playground's pictures, from a real run: docs/playground.webp, step by step, and docs/playground.png, its end.

lopa serve
python docs/_site/playground_picture.py http://127.0.0.1:8000
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

DOCS = Path(__file__).parents[1]
SIZE = {"width": 1100, "height": 720}
STEP_MS, LAST_MS = 700, 2500


def frames(page: Any) -> list[Image.Image]:
    """A picture of each step of one run of the page's own prompt."""
    page.get_by_role("button", name="Run").click()
    page.locator("#status", has_text="Done").wait_for()
    slider = page.get_by_role("slider", name="Step")
    pictures = []
    for step in range(1, int(slider.get_attribute("max")) + 1):
        slider.fill(str(step))
        pictures.append(Image.open(io.BytesIO(page.screenshot())))
    return pictures


def main(url: str) -> None:
    """Run the prompt on the server at `url`, and write both pictures."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_context(viewport=SIZE, reduced_motion="reduce", color_scheme="light").new_page()
        page.goto(url)
        pictures = frames(page)
        browser.close()
    pictures[-1].save(DOCS / "playground.png", optimize=True)
    pictures[0].save(
        DOCS / "playground.webp",
        save_all=True,
        append_images=pictures[1:],
        duration=[STEP_MS] * (len(pictures) - 1) + [LAST_MS],
        loop=0,
        quality=80,
    )


if __name__ == "__main__":
    main(sys.argv[1])
