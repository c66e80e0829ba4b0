"""Draw the pictures of README: ``python docs/pictures/draw.py``; requires Chromium and Playwright."""

import json
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

import tpunb as tp

HERE = Path(__file__).resolve().parent
TOP = {"x": 0, "y": 0, "width": 1100, "height": 1150}


def shown() -> str:
    """Return a digest of what the pictures show of the sample: answer, rates, accounts, advice, phases, operations."""
    state = tp.explore(tp.sample("slow_loader")).state
    parts = (
        state.answer,
        state.rates,
        state.spent,
        state.accounts(),
        state.clusters(),
        state.figures(state.shown_phase),
    )
    return sha256(json.dumps(parts, default=str, sort_keys=True).encode()).hexdigest()


def draw(chromium: str | None = None) -> None:
    """Draw the explorer of the sample in light and dark, and write what they show beside them."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = tp.explore(tp.sample("slow_loader")).save(Path(folder, "page.html"))
        browser = playwright.chromium.launch(executable_path=chromium)
        for scheme in ("light", "dark"):
            view = browser.new_page(viewport={"width": 1100, "height": 900}, color_scheme=scheme)
            view.goto(page.as_uri())
            view.get_by_text("How phases were found").click()
            view.wait_for_timeout(2_000)  # until Vega has drawn
            view.screenshot(path=HERE / f"explorer-{scheme}.png", full_page=True, clip=TOP)
        browser.close()
    (HERE / "shown.txt").write_text(f"{shown()}\n")


if __name__ == "__main__":
    draw(*sys.argv[1:2])
