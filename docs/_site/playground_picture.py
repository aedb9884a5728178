"""The playground's pictures: docs/playground.webp, a decode step by step, and docs/playground.png, the whole page.

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
STEP_MS, LAST_MS = 700, 3000


def decode(page: Any, example: str) -> int:
    """Decode one of the page's examples, with one branch and with verified lookahead; the number of its steps."""
    page.get_by_role("button", name=example).click()
    page.get_by_role("button", name="Run", exact=False).click()
    page.locator("#headline.over").wait_for()
    return int(page.get_by_role("slider", name="Step").get_attribute("max"))


def frames(page: Any, steps: int) -> list[Image.Image]:
    """The canvases after each step, with the clock, without the form, so that a telephone shows them large."""
    clock = page.get_by_role("slider", name="Step")
    page.evaluate("() => scrollTo(0, 0)")  # A box is where the window is, a clip where the page begins.
    clip, foot = page.locator("#stage").bounding_box(), page.locator(".foot").bounding_box()
    clip["height"] = foot["y"] - clip["y"]
    pictures = []
    for step in range(steps + 1):
        clock.fill(str(step))
        shot = page.screenshot(clip=clip, full_page=True, animations="disabled")
        pictures.append(Image.open(io.BytesIO(shot)))
    return pictures


def main(url: str) -> None:
    """Decode on the server at `url`, and write both pictures."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_context(viewport=SIZE, color_scheme="light").new_page()
        page.goto(url)
        steps = decode(page, "Pens")
        pictures = frames(page, steps)
        page.screenshot(path=DOCS / "playground.png", full_page=True, animations="disabled")
        browser.close()
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
